//! What an exchange refuses to start with, and what it leaves when it stops.

use super::{Lab, settings};
use crate::serve::{ADDRESS_FILE, Settings, start};

/// Refused with an error that says this.
async fn refused(settings: Settings, says: &str) {
    let Err(error) = start(settings).await else {
        panic!("started, instead of saying {says}");
    };
    let error = format!("{error:#}");
    assert!(error.contains(says), "{error} should say {says}");
}

#[tokio::test]
async fn an_address_that_is_not_loopback_needs_a_tls_proxy() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut open = settings(&folder.path().join("data"));
    open.listen = "0.0.0.0:0".parse().expect("an address");
    refused(open.clone(), "--behind-tls-proxy").await;
    assert!(!open.data.exists(), "refused before anything is made");
    open.behind_tls_proxy = true;
    let running = start(open).await.expect("starts");
    running.stop().await.expect("stops");
}

#[tokio::test]
async fn one_folder_and_one_port_have_one_exchange() {
    let lab = Lab::start().await;
    refused(settings(lab.folder.path()), "another sela-exchange is running").await;
    let folder = tempfile::tempdir().expect("a folder");
    let mut same_port = settings(folder.path());
    same_port.listen = lab.address();
    refused(same_port, "is taken by another program").await;
    // The first is undisturbed, and what was refused has let go of its folder.
    assert_eq!(lab.operator.get("/readyz").await.body, b"ready\n");
    let other = start(settings(folder.path())).await.expect("starts");
    other.stop().await.expect("stops");
}

#[tokio::test]
async fn the_address_is_told_in_the_folder_while_it_runs() {
    let lab = Lab::start().await;
    let path = lab.folder.path().join(ADDRESS_FILE);
    let told = std::fs::read_to_string(&path).expect("written");
    assert_eq!(told.trim(), lab.address().to_string());
    lab.running.stop().await.expect("stops");
    assert!(!path.exists());
}

#[tokio::test]
async fn records_that_something_else_changed_are_noticed() {
    let lab = Lab::start().await;
    lab.operator.new_tenant(5).await;
    lab.running.stop().await.expect("stops");
    let connection = rusqlite::Connection::open(lab.folder.path().join("exchange.db")).expect("opens");
    connection
        .execute_batch("DROP TRIGGER records_not_removed; DELETE FROM records WHERE json LIKE '%deposited%';")
        .expect("tampered with");
    drop(connection);
    refused(
        settings(lab.folder.path()),
        "the records tell of 0 transfers, and 1 are posted",
    )
    .await;
}

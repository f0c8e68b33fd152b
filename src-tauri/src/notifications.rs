//! Shows notifications, one after the other and away from everything else: a system without a notification daemon can keep a
//! caller waiting for long. Which ones there are, and their words, is decided in the controller;
//! which of them its owner wants, in `settings`.

use crate::controller::Notice;
use crate::settings;
use notify_rust::Notification;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;

/// Then nobody is there to show it.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs until nobody sends any more.
pub(crate) async fn keep(mut notices: Receiver<Notice>) {
    while let Some(notice) = notices.recv().await {
        if !settings::wants(notice.topic) {
            tracing::info!(title = notice.title, "not notified, as desktop.toml wants it");
            continue;
        }
        match tokio::time::timeout(PATIENCE, show(&notice)).await {
            Ok(Ok(())) => tracing::info!(title = notice.title, "notified"),
            Ok(Err(error)) => tracing::warn!(%error, title = notice.title, "a notification was not shown"),
            Err(_) => tracing::warn!(title = notice.title, "nobody shows notifications here"),
        }
    }
}

#[cfg(target_os = "linux")]
async fn show(notice: &Notice) -> Result<(), notify_rust::error::Error> {
    described(notice).show_async().await.map(drop)
}

#[cfg(not(target_os = "linux"))]
async fn show(notice: &Notice) -> Result<(), notify_rust::error::Error> {
    let notification = described(notice);
    match tokio::task::spawn_blocking(move || notification.show().map(drop)).await {
        Ok(shown) => shown,
        // It panicked: the log has it, and there is nothing to undo.
        Err(_) => Ok(()),
    }
}

fn described(notice: &Notice) -> Notification {
    let mut notification = Notification::new();
    notification.appname("Sela").summary(&notice.title).body(&notice.body);
    #[cfg(target_os = "linux")]
    notification
        .icon("io.github.sela.Desktop")
        .hint(notify_rust::Hint::DesktopEntry("io.github.sela.Desktop".to_owned()))
        .urgency(if notice.urgent {
            notify_rust::Urgency::Critical
        } else {
            notify_rust::Urgency::Normal
        });
    notification
}

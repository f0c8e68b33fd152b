//! A mock of logind on a real bus: who sits at the seats, lock, remote sessions, inhibitors, sleep; and a logind or a bus that
//! hangs, dies or lies.

use super::peers::*;
use sela_core::Input;
use sela_protocol::presence::{Observed, Signals};
use sela_protocol::senses::EngagementKind;
use sela_sensors::Config;
use std::time::Duration;

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
const SESSION: &str = "org.freedesktop.login1.Session";

struct Login {
    bus: Bus,
    mock: Ended,
}

impl Login {
    async fn start() -> Self {
        let bus = Bus::start().await;
        let mock = bus.mock(&["--template", "logind"], SERVICE).await;
        Self { bus, mock }
    }

    fn config(&self, folder: &tempfile::TempDir) -> Config {
        Config {
            system_bus: Some(self.bus.address.clone()),
            ..config(folder)
        }
    }

    async fn add(&self, session: &str, user: u32, active: bool) {
        let body = (session, "seat0", user, "joe", active);
        self.bus.call(SERVICE, PATH, MOCK, "AddSession", &body).await;
    }

    async fn set(&self, session: &str, property: &str, value: zbus::Variant<'_>) {
        let path = format!("{PATH}/session/{session}");
        self.bus.set(SERVICE, &path, SESSION, property, value).await;
    }

    async fn announce(&self, signal: &str, start: bool) {
        let body = (MANAGER, signal, "b", vec![zbus::Variant::from(start)]);
        self.bus.call(SERVICE, PATH, MOCK, "EmitSignal", &body).await;
    }

    /// Who holds up the machine's sleep.
    async fn delayed_by(&self) -> Vec<String> {
        type Inhibitor = (String, String, String, String, u32, u32);
        let all: Option<Vec<Inhibitor>> = self.bus.ask(SERVICE, PATH, MANAGER, "ListInhibitors", &()).await;
        let delays = |(what, who, _, mode, ..): Inhibitor| (mode == "delay" && what == "sleep:shutdown").then_some(who);
        all.expect("listed").into_iter().filter_map(delays).collect()
    }

    async fn until_delayed_by(&self, expected: &[&str]) {
        for _ in 0..600 {
            if self.delayed_by().await == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{:?}, not {expected:?}", self.delayed_by().await);
    }
}

/// A session of somebody else, so that no display of this user's is looked for.
const STRANGER: u32 = 4_711;

fn is_nobody(seen: &Signals) -> bool {
    matches!(seen.input, Observed::NotApplicable { .. })
}

#[tokio::test]
async fn sessions_that_appear_lock_switch_and_turn_idle_are_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let login = Login::start().await;
    let mut sight = Sight::open(login.config(&folder));
    sight.signals("that nobody is there", is_nobody).await;

    login.add("c1", STRANGER, true).await;
    let active = sight
        .signals("a session that is not idle", |seen| input_at(seen).is_some())
        .await;
    assert_eq!(input_source(&active), "logind");
    assert_eq!(value(&active.senses.locked), Some(&false));

    login.set("c1", "LockedHint", true.into()).await;
    sight
        .signals("the lock", |seen| value(&seen.senses.locked) == Some(&true))
        .await;

    // Idle for as long as this machine runs: what was seen is not unseen, so the newest input stands still from now on.
    login.set("c1", "IdleSinceHintMonotonic", 1_000_u64.into()).await;
    login.set("c1", "IdleHint", true.into()).await;
    idle(&mut sight, "logind").await;

    // Switched away from, it gets no input; whoever came instead does.
    login.set("c1", "Active", false.into()).await;
    sight.signals("that the seat is empty", is_nobody).await;
    login.add("c2", STRANGER + 1, true).await;
    sight.signals("the next person", |seen| input_at(seen).is_some()).await;
    login
        .bus
        .call(SERVICE, PATH, MOCK, "RemoveObject", &format!("{PATH}/session/c2"))
        .await;
    sight.signals("that they have left", is_nobody).await;
}

#[tokio::test]
async fn a_remote_desktop_is_seen_and_is_no_hand_at_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let login = Login::start().await;
    login.add("r1", STRANGER, true).await;
    login.set("r1", "Type", "x11".into()).await;
    login.set("r1", "Remote", true.into()).await;
    let mut sight = Sight::open(login.config(&folder));
    let seen = sight
        .signals("the remote session", |seen| {
            value(&seen.senses.remote).is_some_and(|hands| hands.iter().any(|hand| hand.by == "login"))
        })
        .await;
    assert!(is_nobody(&seen), "{:?}", seen.input);
}

#[tokio::test]
async fn what_keeps_the_screen_on_is_seen_until_it_lets_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let login = Login::start().await;
    let mut sight = Sight::open(login.config(&folder));
    let films = |seen: &Signals| {
        let engaged = value(&seen.senses.engaged)?;
        let film = engaged
            .iter()
            .find(|engaged| engaged.kind == EngagementKind::KeepsAwake)?;
        Some(film.program.clone())
    };
    sight.signals("that no film runs", |seen| films(seen).is_none()).await;
    let connection = zbus::connection::Builder::address(login.bus.address.as_str())
        .build()
        .await
        .expect("the bus");
    let inhibit = async |what: &str, who: &str, mode: &str| -> zbus::OwnedFd {
        let body = (what, who, "a reason", mode);
        let call = connection.call_method(Some(SERVICE), PATH, Some(MANAGER), "Inhibit", &body);
        call.await.expect("inhibited").body().deserialize().expect("a lock")
    };
    let _keys = inhibit("handle-lid-switch:handle-power-key", "desktop", "block").await;
    let _delay = inhibit("idle", "delayer", "delay").await;
    let film = inhibit("sleep:idle", "mpv", "block").await;
    sight
        .signals("the film", |seen| films(seen).as_deref() == Some("mpv"))
        .await;
    drop(film);
    sight.signals("the end of the film", |seen| films(seen).is_none()).await;
}

#[tokio::test]
async fn sleep_waits_until_the_job_has_ended_and_is_held_up_anew_after_waking() {
    let folder = tempfile::tempdir().expect("a folder");
    let login = Login::start().await;
    let mut sight = Sight::open(login.config(&folder));
    login.until_delayed_by(&["Sela"]).await;
    login.announce("PrepareForSleep", true).await;
    let falls_asleep = |input: &Input| matches!(input, Input::Sleep { asleep: true });
    sight.input("the coming sleep", falls_asleep).await;
    assert_eq!(login.delayed_by().await, ["Sela"], "the job has not ended");
    sight.eyes.attend(false);
    login.until_delayed_by(&[]).await;
    login.announce("PrepareForSleep", false).await;
    let wakes = |input: &Input| matches!(input, Input::Sleep { asleep: false });
    sight.input("the waking", wakes).await;
    login.until_delayed_by(&["Sela"]).await;
    // A job that does not end holds up a shutdown for two seconds, no longer.
    sight.eyes.attend(true);
    login.announce("PrepareForShutdown", true).await;
    sight
        .input("the shutdown", |input| matches!(input, Input::Shutdown))
        .await;
    login.until_delayed_by(&[]).await;
}

pub(crate) async fn a_logind_that_hangs_lies_or_dies_is_a_reason_and_never_idleness() {
    let folder = tempfile::tempdir().expect("a folder");
    let login = Login::start().await;
    login.add("c1", STRANGER, true).await;
    let mut sight = Sight::open(login.config(&folder));
    sight.signals("a session", |seen| input_at(seen).is_some()).await;
    login.mock.hang();
    let hung = sight.signals("the hung logind", |seen| is_unknown(&seen.input)).await;
    assert_eq!(input_source(&hung), "logind");
    assert!(is_unknown(&hung.senses.locked));
    login.mock.go_on();
    sight.signals("it again", |seen| input_at(seen).is_some()).await;
    // A number where a truth is due.
    login.set("c1", "IdleHint", 7_u32.into()).await;
    let lie = sight.signals("the lie", |seen| is_unknown(&seen.input)).await;
    assert!(
        matches!(&lie.input, Observed::Unknown { why, .. } if why.contains("IdleHint")),
        "{lie:?}"
    );
    login.set("c1", "IdleHint", false.into()).await;
    sight.signals("the truth", |seen| input_at(seen).is_some()).await;
    drop(login.bus.daemon);
    let gone = sight
        .signals("the end of the bus", |seen| is_unknown(&seen.input))
        .await;
    assert_eq!(input_source(&gone), "logind");
}

#[tokio::test]
async fn where_there_is_no_session_and_no_display_input_is_not_applicable() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sight = Sight::open(config(&folder));
    let seen = sight.signals("that there is nothing to see", is_nobody).await;
    let Observed::NotApplicable { why } = seen.input else {
        unreachable!("waited for")
    };
    assert!(why.contains("no bus"), "{why}");
}

//! Owns all that the shell knows and turns what happens into what is to be done: events in, effects out, the time passed in.
//! No window, no bus, no socket: `app` carries the effects out, and tests read them as they are.
//!
//! **Quit** ends the agent, not only the tray. An owner who quits a program that lets strangers use the card expects that
//! nobody uses it any more; leaving only the tray would go on sharing with nothing on the screen that says so. So the agent is
//! told to end its jobs and stop, the state line says that it is stopping, and the tray leaves when it is gone. It comes back
//! with the next start of this program, which asks the supervisor for it. Where the agent cannot be told, that is said and the
//! tray stays; a second Quit then leaves all the same. Closing the window is not quitting.

mod condition;
mod notices;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use notices::Notice;

use crate::figures;
use crate::settings::Topic;
use crate::sign::Sign;
use crate::supervisor::{Answer, Remedy};
use crate::trouble::{Kind, Trouble};
use crate::words::{Key, Words};
use jiff::tz::TimeZone;
use notices::Notices;
use sela_protocol::local::{self, Command, CommandReply};
use sela_protocol::units::{BootMs, Millis, Now};
use view::Line;

/// What happens to the shell.
#[derive(Debug)]
pub(crate) enum Event {
    /// It has started.
    Started {
        /// Without a window.
        hidden: bool,
        /// Whether there is a tray to live in without a window. One that only comes later is told of by [`Event::Tray`].
        tray: bool,
        /// Whether it starts at login; `None` where that cannot be told.
        at_login: Option<bool>,
    },
    /// The tray has come, or is gone.
    Tray {
        /// Which.
        there: bool,
    },
    /// Somebody wants the window: the program was started once more.
    WindowWanted,
    /// The agent told something.
    Heard(Box<local::Event>),
    /// The agent was not reached, or is not any more.
    Lost(Trouble),
    /// The owner chose from the tray.
    Chose(Choice),
    /// The window is gone.
    WindowClosed,
    /// There is no window to be had, and why.
    NoWindow(String),
    /// What the supervisor said.
    SupervisorAnswered(Answer),
    /// What the agent said to a command.
    CommandAnswered {
        /// Which.
        command: Command,
        /// Its answer, or why there is none.
        answer: Result<CommandReply, Trouble>,
    },
    /// Whether this program starts at login from now on; `None` where that cannot be told.
    AtLogin(Option<bool>),
    /// The time that an effect asked for has passed.
    Woken,
}

/// What the owner can choose in the tray.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Share, or pause until told otherwise.
    Share,
    /// Pause for an hour.
    PauseHour,
    /// Pause until tomorrow.
    PauseTomorrow,
    /// Open the window.
    Open,
    /// Start at login, or no longer.
    StartAtLogin,
    /// End the jobs, the agent and this program.
    Quit,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Let the tray show this.
    ShowTray(TrayView),
    /// Show a notification.
    Notify(Notice),
    /// Open the window, or bring it to the front.
    OpenWindow,
    /// Tell the agent.
    Tell(Command),
    /// Ask the supervisor for the agent.
    AskSupervisor,
    /// Start at login, or no longer.
    SetAtLogin(bool),
    /// Come back after this time.
    Wake(Millis),
    /// End this program.
    Leave,
}

/// What the tray shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TrayView {
    /// The icon.
    pub(crate) sign: Sign,
    /// The sentence of state.
    pub(crate) state: String,
    /// Whether "Share" is checked.
    pub(crate) sharing: bool,
    /// Whether "Share" can be chosen.
    pub(crate) can_share: bool,
    /// Whether the pauses can be chosen.
    pub(crate) can_pause: bool,
    /// What was earned today.
    pub(crate) earned: String,
    /// Whether "Start at login" is checked; it cannot be chosen where that is not known.
    pub(crate) at_login: Option<bool>,
}

impl TrayView {
    /// What the tray shows before anything is known.
    pub(crate) fn at_start(words: &Words) -> Self {
        Self {
            sign: Sign::Paused,
            state: words.say(Key::Asking, &[]),
            sharing: false,
            can_share: false,
            can_pause: false,
            earned: words.say(Key::TrayEarned, &[("amount", NO_AMOUNT)]),
            at_login: None,
        }
    }
}

/// How far quitting has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quitting {
    /// Nobody wants to quit.
    No,
    /// The agent was told, and has until then.
    Until(BootMs),
    /// It could not be told, or did not end.
    Failed,
}

/// Where no amount is known.
const NO_AMOUNT: &str = "–";

const AN_HOUR: Millis = Millis::from_secs(3600);

/// Longer than an agent takes to end its jobs: their grace to save, the fence, results that are still being stored.
const QUIT_PATIENCE: Millis = Millis::from_secs(90);

/// The supervisor is not asked more often than that.
const ASK_AGAIN_AFTER: Millis = Millis::from_secs(10);

/// The one owner of the shell's state.
#[derive(Debug)]
pub(crate) struct Controller {
    words: Words,
    zone: TimeZone,
    line: Line,
    notices: Notices,
    quitting: Quitting,
    has_tray: bool,
    at_login: Option<bool>,
    asked_supervisor: Option<BootMs>,
    remedy: Remedy,
    shown: Option<TrayView>,
}

impl Controller {
    pub(crate) fn new(words: Words, zone: TimeZone) -> Self {
        Self {
            words,
            zone,
            line: Line::Asking,
            notices: Notices::default(),
            quitting: Quitting::No,
            has_tray: false,
            at_login: None,
            asked_supervisor: None,
            remedy: Remedy::RunAgent,
            shown: None,
        }
    }

    /// Takes in one event and says what is to be done, in order.
    pub(crate) fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = match event {
            Event::Started { hidden, tray, at_login } => {
                self.has_tray = tray;
                self.at_login = at_login;
                // Without a tray a hidden start could never be seen, nor ended.
                Vec::from_iter((!hidden || !tray).then_some(Effect::OpenWindow))
            }
            Event::Tray { there } => {
                self.has_tray = there;
                // A new panel has seen nothing yet.
                self.shown = None;
                Vec::new()
            }
            Event::WindowWanted => vec![Effect::OpenWindow],
            Event::Heard(event) => self.hear(*event, now),
            Event::Lost(trouble) => self.lose(trouble, now),
            Event::Chose(choice) => self.chose(choice, now),
            Event::WindowClosed => self.without_window(),
            Event::NoWindow(why) => {
                let mut effects = vec![self.not_done(&why)];
                effects.extend(self.without_window());
                effects
            }
            Event::SupervisorAnswered(answer) => {
                if let Answer::Cannot { remedy, .. } = answer {
                    self.remedy = remedy;
                }
                Vec::new()
            }
            Event::CommandAnswered { command, answer } => self.answered(&command, answer),
            Event::AtLogin(at_login) => {
                self.at_login = at_login;
                self.shown = None;
                Vec::new()
            }
            Event::Woken => self.woken(now),
        };
        let notices = self
            .notices
            .of(&self.line, now.boot_ms, self.remedy.start(), &self.words);
        // Whoever quits does not want to be told that nothing is shared.
        if !matches!(self.quitting, Quitting::Until(_)) {
            effects.extend(notices.into_iter().map(Effect::Notify));
        }
        effects.extend(self.show(now));
        effects
    }

    fn hear(&mut self, event: local::Event, now: Now) -> Vec<Effect> {
        let notice = if let local::Event::Yielded(given) = &event {
            self.notices.of_yield(given, &self.line, now.boot_ms, &self.words)
        } else {
            None
        };
        self.line.hear(event);
        Vec::from_iter(notice.map(Effect::Notify))
    }

    fn lose(&mut self, trouble: Trouble, now: Now) -> Vec<Effect> {
        let first = !matches!(self.line, Line::Lost(_));
        let away = trouble.kind == Kind::NotRunning;
        let began = matches!(self.line, Line::Asking);
        self.line = Line::Lost(trouble);
        match self.quitting {
            Quitting::Until(_) if away => vec![Effect::Leave],
            // An agent that somebody stopped stays stopped; one that was not there when this program started is wanted.
            Quitting::No if away && first && began => self.ask_supervisor(now),
            Quitting::No | Quitting::Until(_) | Quitting::Failed => Vec::new(),
        }
    }

    fn chose(&mut self, choice: Choice, now: Now) -> Vec<Effect> {
        // The system may have toggled a check by itself: what is shown is no longer known.
        self.shown = None;
        match choice {
            Choice::Share => match &self.line {
                Line::Live(snapshot) if snapshot.pause.is_some() => vec![Effect::Tell(Command::Resume)],
                Line::Live(_) => vec![Effect::Tell(Command::Pause { for_ms: None })],
                Line::Lost(_) => self.ask_supervisor(now),
                Line::Asking | Line::OtherVersion { .. } => Vec::new(),
            },
            Choice::PauseHour => vec![Effect::Tell(Command::Pause { for_ms: Some(AN_HOUR) })],
            Choice::PauseTomorrow => {
                let for_ms = Some(figures::until_tomorrow(now.utc_ms, &self.zone));
                vec![Effect::Tell(Command::Pause { for_ms })]
            }
            Choice::Open => {
                let mut effects = vec![Effect::OpenWindow];
                if matches!(&self.line, Line::Lost(trouble) if trouble.kind == Kind::NotRunning) {
                    effects.extend(self.ask_supervisor(now));
                }
                effects
            }
            Choice::StartAtLogin => Vec::from_iter(self.at_login.map(|at_login| Effect::SetAtLogin(!at_login))),
            Choice::Quit => self.quit(now),
        }
    }

    fn quit(&mut self, now: Now) -> Vec<Effect> {
        let gone = matches!(&self.line, Line::Lost(trouble) if trouble.kind == Kind::NotRunning);
        match self.quitting {
            Quitting::No if !gone => {
                self.quitting = Quitting::Until(now.boot_ms.plus(QUIT_PATIENCE));
                vec![Effect::Tell(Command::Quit), Effect::Wake(QUIT_PATIENCE)]
            }
            Quitting::No | Quitting::Until(_) | Quitting::Failed => vec![Effect::Leave],
        }
    }

    fn answered(&mut self, command: &Command, answer: Result<CommandReply, Trouble>) -> Vec<Effect> {
        let why = match answer {
            Ok(CommandReply::Done) => return Vec::new(),
            Ok(CommandReply::Refused { message }) => message,
            // It left before it could say that it will.
            Err(trouble) if *command == Command::Quit && trouble.kind == Kind::NotRunning => {
                return vec![Effect::Leave];
            }
            Err(trouble) => trouble.message,
        };
        if *command == Command::Quit {
            return self.quit_failed(&why);
        }
        vec![self.not_done(&why)]
    }

    fn not_done(&self, why: &str) -> Effect {
        Effect::Notify(Notice {
            topic: Topic::Answer,
            title: self.words.say(Key::Attention, &[]),
            body: self.words.say(Key::CommandFailed, &[("why", why)]),
            urgent: false,
        })
    }

    /// Where there is no tray either, nothing is left to be seen of this program.
    fn without_window(&self) -> Vec<Effect> {
        Vec::from_iter((!self.has_tray).then_some(Effect::Leave))
    }

    fn woken(&mut self, now: Now) -> Vec<Effect> {
        match self.quitting {
            Quitting::Until(until) if now.boot_ms >= until => {
                let why = self.words.say(Key::Stopping, &[]);
                self.quit_failed(why.trim_end_matches('.'))
            }
            Quitting::No | Quitting::Until(_) | Quitting::Failed => Vec::new(),
        }
    }

    fn quit_failed(&mut self, why: &str) -> Vec<Effect> {
        self.quitting = Quitting::Failed;
        let places = [("why", why.trim_end_matches('.')), ("command", "sela pause")];
        vec![Effect::Notify(Notice {
            topic: Topic::Answer,
            title: self.words.say(Key::QuitFailed, &[]),
            body: self.words.say(Key::QuitFailedText, &places),
            urgent: true,
        })]
    }

    fn ask_supervisor(&mut self, now: Now) -> Vec<Effect> {
        let lately = |asked: BootMs| now.boot_ms.since(asked) < ASK_AGAIN_AFTER;
        if self.asked_supervisor.is_some_and(lately) {
            return Vec::new();
        }
        self.asked_supervisor = Some(now.boot_ms);
        vec![Effect::AskSupervisor]
    }

    /// The tray, where it should show something else than it does.
    fn show(&mut self, now: Now) -> Option<Effect> {
        let view = self.view(now);
        if !self.has_tray || self.shown.as_ref() == Some(&view) {
            return None;
        }
        self.shown = Some(view.clone());
        Some(Effect::ShowTray(view))
    }

    fn view(&self, now: Now) -> TrayView {
        let leaving = matches!(self.quitting, Quitting::Until(_));
        let live = match &self.line {
            Line::Live(snapshot) => Some(snapshot),
            Line::Asking | Line::Lost(_) | Line::OtherVersion { .. } => None,
        };
        let amount = live.map_or_else(
            || NO_AMOUNT.to_owned(),
            |snapshot| figures::money(snapshot.earned.today_net, &self.words.locale),
        );
        let mut earned = self.words.say(Key::TrayEarned, &[("amount", &amount)]);
        if live.is_some_and(|snapshot| snapshot.lab) {
            // Money of no worth must never look like money.
            earned = format!("{earned} ({})", self.words.say(Key::Lab, &[]));
        }
        let state = if leaving {
            self.words.say(Key::Stopping, &[])
        } else {
            condition::sentence(&self.line, &self.words, now.utc_ms, &self.zone)
        };
        TrayView {
            sign: if leaving {
                Sign::Paused
            } else {
                condition::sign(&self.line)
            },
            state,
            sharing: live.is_some_and(|snapshot| snapshot.pause.is_none()) && !leaving,
            can_share: !leaving && matches!(self.line, Line::Live(_) | Line::Lost(_)),
            can_pause: !leaving && live.is_some(),
            earned,
            at_login: self.at_login,
        }
    }
}

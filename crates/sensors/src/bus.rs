//! One service on a D-Bus: connected to with bounded calls, asked again on each of its signals and at each sign of life,
//! tried again with growing pauses when it breaks. A bus that was never there is no fault; one that breaks is.

use crate::attention::Attention;
use futures_util::StreamExt as _;
use sela_protocol::units::Millis;
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;
use zbus::message::{Message, Type};
use zbus::{Connection, MatchRule, MessageStream, OwnedVariant, Variant};

/// An answer that takes longer is none.
const ANSWER: Duration = Duration::from_secs(2);
/// The first pause after a failure; doubled up to the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// After a look the next comes no sooner: a service that flaps is asked ten times a second, not more.
const BREATH: Millis = Millis(100);
/// Signals that wait to be heard; more are told by the look that follows anyway.
const QUEUE: usize = 64;

/// Where a bus is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// At an address.
    At(String),
    /// The system's own.
    System,
    /// This session has none.
    Nowhere,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The service is not there, and need not be.
    Absent(String),
    /// It is there, and failed.
    Failed(String),
    /// Nobody listens any more: the agent ends.
    Unheard,
}

impl From<zbus::Error> for Fault {
    fn from(error: zbus::Error) -> Self {
        Self::Failed(told(&error))
    }
}

/// Objects of a service.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Objects {
    /// The one at this path.
    At(&'static str),
    /// It, and all below it.
    Under(&'static str),
}

/// What is asked for on a bus.
pub(crate) trait Subject: Send {
    /// The service's well-known name.
    fn service(&self) -> &'static str;
    /// The objects whose signals ring: a service may have others that change many times a second (access points in reach).
    fn objects(&self) -> Objects;
    /// Looks, and reports.
    fn look(&mut self, bus: &Bus) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Hears one of the service's signals, before the look that follows it.
    fn hear(&mut self, bus: &Bus, signal: &Message) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Reports that there is no answer; whether anybody listens.
    fn lament(&mut self, fault: Fault) -> impl Future<Output = bool> + Send;
}

/// Follows a subject until nobody listens any more.
pub(crate) async fn follow<S: Subject>(place: Place, mut subject: S, attention: Attention) {
    let mut pause = FIRST_PAUSE;
    let mut was_there = false;
    loop {
        let fault = match Bus::connect(&place).await {
            Ok(bus) => {
                was_there = true;
                match subject.attend(&bus, &attention, &mut pause).await {
                    Ok(never) => match never {},
                    Err(fault) => fault,
                }
            }
            Err(error) if was_there => Fault::Failed(format!("the bus does not answer: {}", told(&error))),
            Err(error) => Fault::Absent(format!("no bus ({})", told(&error))),
        };
        if matches!(fault, Fault::Unheard) || !subject.lament(fault).await {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

enum Never {}

trait Attend: Subject {
    /// One connection, until it breaks.
    async fn attend(&mut self, bus: &Bus, attention: &Attention, pause: &mut Duration) -> Result<Never, Fault> {
        let rule = MatchRule::builder().msg_type(Type::Signal).sender(self.service());
        let rule = match self.objects() {
            Objects::At(path) => rule.path(path),
            Objects::Under(path) => rule.path_namespace(path),
        };
        let rule = rule.build()?;
        let mut signals =
            MessageStream::for_match_rule(rule, &bus.connection, std::num::NonZeroUsize::new(QUEUE)).await?;
        let comings = MatchRule::builder()
            .msg_type(Type::Signal)
            .sender("org.freedesktop.DBus")
            .member("NameOwnerChanged")
            .add_arg(self.service())
            .build()?;
        let mut comings = MessageStream::for_match_rule(comings, &bus.connection, None).await?;
        let mut changes = attention.changes();
        loop {
            match self.look(bus).await {
                Ok(()) => *pause = FIRST_PAUSE,
                // Not there now: its coming is told by the bus.
                Err(fault @ Fault::Absent(_)) => {
                    if !self.lament(fault).await {
                        return Err(Fault::Unheard);
                    }
                }
                Err(fault) => return Err(fault),
            }
            let looked = sela_clock::now().boot_ms;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(attention.period().0)) => {}
                changed = changes.changed() => changed.map_err(|_| Fault::Unheard)?,
                signal = next(&mut signals, self.service()) => self.hear(bus, &signal?).await?,
                coming = comings.next() => drop(coming.ok_or_else(gone)??),
            }
            // What comes meanwhile is heard at once, and looked at together.
            loop {
                let rest = looked.plus(BREATH).since(sela_clock::now().boot_ms);
                if rest.0 == 0 {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(rest.0)) => break,
                    signal = next(&mut signals, self.service()) => self.hear(bus, &signal?).await?,
                }
            }
        }
    }
}

impl<S: Subject> Attend for S {}

/// The next signal in the service's own words, or of a property. What else a service may say is not listened to: one that told of
/// each question would be asked without end.
async fn next(signals: &mut MessageStream, service: &str) -> Result<Message, Fault> {
    loop {
        let signal = signals.next().await.ok_or_else(gone)??;
        let header = signal.header();
        let interface = header
            .interface()
            .map(|interface| interface.as_str())
            .unwrap_or_default();
        if interface.starts_with(service) || interface == "org.freedesktop.DBus.Properties" {
            drop(header);
            return Ok(signal);
        }
    }
}

fn gone() -> Fault {
    Fault::Failed("the bus has gone".into())
}

/// A connection to a bus.
pub(crate) struct Bus {
    connection: Connection,
}

/// All properties of one interface of one object.
#[derive(Debug)]
pub(crate) struct Properties(HashMap<String, OwnedVariant>);

impl Bus {
    async fn connect(place: &Place) -> zbus::Result<Self> {
        let builder = match place {
            Place::At(address) => zbus::connection::Builder::address(address.as_str()),
            Place::System => zbus::connection::Builder::system(),
            Place::Nowhere => return Err(zbus::Error::Address("this session has none".into())),
        };
        let connecting = builder.method_timeout(ANSWER).build();
        // A bus that takes the connection and says nothing would be waited for without end.
        match tokio::time::timeout(ANSWER * 2, connecting).await {
            Ok(connection) => Ok(Self {
                connection: connection?,
            }),
            Err(_) => Err(zbus::Error::Failure("takes the connection and says nothing".into())),
        }
    }

    /// Whether a service runs. One that the bus would start for whoever asks is not started by this.
    pub(crate) async fn has(&self, service: &str) -> Result<bool, Fault> {
        let bus = "org.freedesktop.DBus";
        let answer = self
            .connection
            .call_method(Some(bus), "/org/freedesktop/DBus", Some(bus), "NameHasOwner", &service)
            .await?;
        Ok(answer.body().deserialize()?)
    }

    /// Fails with [`Fault::Absent`] where a service does not run.
    pub(crate) async fn require(&self, service: &str) -> Result<(), Fault> {
        if self.has(service).await? {
            Ok(())
        } else {
            Err(Fault::Absent(format!("{service} does not run here")))
        }
    }

    /// Calls a method.
    pub(crate) async fn call<B, R>(
        &self,
        service: &str,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<R, Fault>
    where
        B: serde::Serialize + zbus::wire::DynamicType + Sync,
        R: serde::de::DeserializeOwned + zbus::Type,
    {
        let answer = self
            .connection
            .call_method(Some(service), path, Some(interface), method, body)
            .await?;
        Ok(answer.body().deserialize::<R>()?)
    }

    /// All properties of an interface of an object.
    pub(crate) async fn properties(&self, service: &str, path: &str, interface: &str) -> Result<Properties, Fault> {
        let properties = "org.freedesktop.DBus.Properties";
        let all = self.call(service, path, properties, "GetAll", &interface).await?;
        Ok(Properties(all))
    }
}

impl Properties {
    /// A property of a type; a service that gives another type, or none, lies.
    pub(crate) fn get<'a, T>(&'a self, name: &str) -> Result<T, Fault>
    where
        T: TryFrom<&'a Variant<'static>>,
    {
        self.0
            .get(name)
            .and_then(|value| T::try_from(value).ok())
            .ok_or_else(|| Fault::Failed(format!("gives no {name} that could be understood")))
    }
}

/// What went wrong, without the bus's own names for it.
fn told(error: &zbus::Error) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the errors of zbus are not ours to list")]
    match error {
        zbus::Error::InputOutput(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            "no answer within 2 s".into()
        }
        other => other.to_string(),
    }
}

//! A session bus of a test's own, and calls on it.

use anyhow::Context;
use sela_tests::{Part, wait_for};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio::runtime::Runtime;
use zbus::connection::Builder;
use zbus::wire::{DynamicDeserialize, DynamicType};
use zbus::{Connection, Message};

/// A bus that ends with the test.
#[derive(Debug)]
pub struct Bus {
    _daemon: Part,
    address: String,
    runtime: Arc<Runtime>,
}

impl Bus {
    /// Starts one. Its configuration is the system's own for sessions, without services that it could start.
    ///
    /// # Errors
    /// Where it does not come up; `cargo xtask setup` installs it.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let socket = folder.join("bus");
        let configuration = folder.join("bus.conf");
        let address = format!("unix:path={}", socket.display());
        std::fs::write(
            &configuration,
            format!(
                "<busconfig><type>session</type><listen>{address}</listen><policy context=\"default\">\
                 <allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/><allow own=\"*\"/></policy></busconfig>"
            ),
        )?;
        let mut daemon = Part::new("bus", folder.join("logs/bus.log"));
        let mut command = Command::new("dbus-daemon");
        command
            .arg("--nofork")
            .arg(format!("--config-file={}", configuration.display()));
        daemon
            .start(&mut command)
            .context("install dbus, or run `cargo xtask setup`")?;
        wait_for("the bus", || {
            daemon.is_up()?;
            Ok(std::os::unix::net::UnixStream::connect(&socket).ok().map(drop))
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        Ok(Self {
            _daemon: daemon,
            address,
            runtime: Arc::new(runtime),
        })
    }

    /// What DBUS_SESSION_BUS_ADDRESS is set to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection of its own. `prepare` may put objects and names on it.
    ///
    /// # Errors
    /// Where the bus does not take it, or a name is taken.
    pub fn connect(&self, prepare: impl FnOnce(Builder<'_>) -> Builder<'_>) -> anyhow::Result<Caller> {
        let builder = prepare(Builder::address(self.address.as_str()));
        let connection = self.runtime.block_on(builder.build())?;
        Ok(Caller {
            connection,
            runtime: self.runtime.clone(),
        })
    }
}

/// Somebody on the bus.
#[derive(Debug, Clone)]
pub struct Caller {
    connection: Connection,
    runtime: Arc<Runtime>,
}

impl Caller {
    /// Calls a method and takes its answer.
    ///
    /// # Errors
    /// What the other side said, or that its answer reads otherwise.
    pub fn call<B, R>(&self, to: &str, path: &str, method: (&str, &str), body: &B) -> anyhow::Result<R>
    where
        B: serde::Serialize + DynamicType,
        R: for<'a> DynamicDeserialize<'a>,
    {
        let (interface, name) = method;
        let reply = self
            .runtime
            .block_on(self.connection.call_method(Some(to), path, Some(interface), name, body));
        let reply: Message = reply.with_context(|| format!("{interface}.{name} of {to}{path}"))?;
        let body = reply.body();
        Ok(body.deserialize()?)
    }

    /// Tells everybody of something.
    ///
    /// # Errors
    /// Where the bus does not take it.
    pub fn emit<B>(&self, path: &str, signal: (&str, &str), body: &B) -> anyhow::Result<()>
    where
        B: serde::Serialize + DynamicType,
    {
        let (interface, name) = signal;
        let nobody = None::<&str>;
        let emitted = self.connection.emit_signal(nobody, path, interface, name, body);
        Ok(self.runtime.block_on(emitted)?)
    }
}

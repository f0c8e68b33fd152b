//! Which backend the attacks are tried on: the one value that tells them apart. Whether it is here, and what it promises, is its own
//! code's to say.

use crate::engines::{Engine, images};
use sela_protocol::local::IsolationState;
use sela_sandbox::docker::image::EngineImages;
use sela_sandbox::docker::{self, EngineKind, EnginePlace};
use sela_sandbox::keeper::wire::CgroupLayout;
use sela_sandbox::probe::{Guarantee, Machine, Probe, probe};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Native,
    Engine(EngineKind),
}

/// A backend that is here.
pub(crate) struct Here {
    pub(crate) name: &'static str,
    pub(crate) promises: Vec<Guarantee>,
    engine: Option<(Engine, EngineImages)>,
}

impl Backend {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Engine(kind) => kind.name(),
        }
    }

    /// Has it started where it needs that; `None` where it was said by name why it is skipped, which is a failure where nothing may
    /// be.
    pub(crate) async fn here(self) -> Option<Here> {
        let machine = looked_at();
        if let IsolationState::Missing { why } = machine.state {
            println!("{}: skipped: {why}", self.name());
            assert!(
                std::env::var_os("CI").is_none(),
                "{} is to be tried here and cannot: {why}",
                self.name()
            );
            return None;
        }
        let (promises, engine) = match self {
            Self::Native => (machine.guarantees, None),
            Self::Engine(kind) => {
                let engine = Engine::start(kind).await?;
                let images = images(&engine.place).await;
                let promises = docker::promised(images.engine(), machine.guarantees);
                (promises, Some((engine, images)))
            }
        };
        Some(Here {
            name: self.name(),
            promises,
            engine,
        })
    }
}

impl Here {
    /// The images of the engine, if this is one.
    pub(crate) fn images(&self) -> Option<&EngineImages> {
        self.engine.as_ref().map(|(_, images)| images)
    }

    /// Where the engine listens, if this is one.
    pub(crate) fn place(&self) -> Option<&EnginePlace> {
        self.engine.as_ref().map(|(engine, _)| &engine.place)
    }
}

fn looked_at() -> Probe {
    // Cards here are SIMULATED ones.
    let machine = Machine {
        wipes_cards: true,
        ..Machine::this()
    };
    probe(&machine, true)
}

/// The layout of this machine's cgroups.
pub(crate) fn layout() -> CgroupLayout {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        CgroupLayout::V2
    } else {
        CgroupLayout::LabCgroupV1
    }
}

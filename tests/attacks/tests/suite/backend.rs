//! Which backend the attacks are tried on: the one value that tells them apart. Whether it is here, and what it promises, is its own
//! code's to say.

use sela_protocol::local::IsolationState;
use sela_sandbox::keeper::wire::CgroupLayout;
use sela_sandbox::probe::{Guarantee, Machine, Probe, probe};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Native,
}

impl Backend {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
        }
    }

    /// What this machine lacks for it.
    pub(crate) fn missing(self) -> Option<String> {
        match self {
            Self::Native => match looked_at().state {
                IsolationState::Ready { .. } => None,
                IsolationState::Missing { why } => Some(why),
            },
        }
    }

    pub(crate) fn promises(self) -> Vec<Guarantee> {
        match self {
            Self::Native => looked_at().guarantees,
        }
    }
}

fn looked_at() -> Probe {
    probe(&Machine::this(), true)
}

/// The layout of this machine's cgroups.
pub(crate) fn layout() -> CgroupLayout {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        CgroupLayout::V2
    } else {
        CgroupLayout::LabCgroupV1
    }
}

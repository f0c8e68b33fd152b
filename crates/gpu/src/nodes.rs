//! Which device nodes a card's driver needs inside a sandbox. Pure: names only, nothing is opened or made here; the sandbox
//! writes its CDI description from them.

use std::path::{Path, PathBuf};

/// Whose device nodes.
///
/// A simulated card's node lies in its lab's folder. NVML has no call that would tell it, and hiding it in some
/// string of the simulated driver would be a second meaning for that string: whoever starts the driver knows the
/// folder (it is in `SELA_NVML_SIM_DIR`) and passes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeFamily<'a> {
    /// NVIDIA's driver on Linux.
    Nvidia,
    /// The simulated driver, with the lab's folder.
    Simulated(&'a Path),
}

/// The nodes that a job needs for the card with this minor number, the card's own first, and no other card's. For NVIDIA: what
/// CUDA opens; not `nvidia-modeset`, which is for displays. `nvidia-uvm` may be missing until something loads its module.
pub fn device_nodes(minor: u32, family: NodeFamily<'_>) -> Vec<PathBuf> {
    match family {
        NodeFamily::Nvidia => [
            format!("/dev/nvidia{minor}"),
            "/dev/nvidiactl".to_owned(),
            "/dev/nvidia-uvm".to_owned(),
            "/dev/nvidia-uvm-tools".to_owned(),
        ]
        .map(PathBuf::from)
        .to_vec(),
        NodeFamily::Simulated(lab) => vec![lab.join("dev").join(format!("sela-sim{minor}"))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_comes_with_its_own_node_and_no_other_cards() {
        let nodes = device_nodes(1, NodeFamily::Nvidia);
        assert_eq!(nodes[0], Path::new("/dev/nvidia1"));
        assert!(nodes.contains(&PathBuf::from("/dev/nvidiactl")));
        assert!(nodes.contains(&PathBuf::from("/dev/nvidia-uvm")));
        assert!(!nodes.contains(&PathBuf::from("/dev/nvidia0")));
        assert_eq!(
            device_nodes(2, NodeFamily::Simulated(Path::new("/lab"))),
            [PathBuf::from("/lab/dev/sela-sim2")]
        );
    }
}

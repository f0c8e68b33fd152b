//! One card's memory for one process that allocates many pieces of it, as a CUDA program does: each a lock on the node, all by
//! one descriptor that is never closed, since closing any would drop them all. What lies in it stays when it is given back.

use crate::node::{free_stretches, lock, unlock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// See the module. Everything is in MiB.
#[derive(Debug)]
pub(crate) struct Pool {
    path: PathBuf,
    node: File,
    /// Start and length of what is held.
    held: BTreeMap<u64, u64>,
}

impl Pool {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            node: File::options().read(true).write(true).open(path)?,
            held: BTreeMap::new(),
        })
    }

    pub(crate) fn total(&self) -> io::Result<u64> {
        Ok(self.node.metadata()?.len())
    }

    /// What nobody holds at this moment.
    pub(crate) fn free(&self) -> io::Result<u64> {
        let stretches = free_stretches(&self.path)?;
        Ok(stretches.iter().map(|stretch| stretch.end - stretch.start).sum())
    }

    /// Takes the first stretch that is long enough; `None` where there is none.
    pub(crate) fn take(&mut self, mib: u64) -> io::Result<Option<u64>> {
        loop {
            let stretches = free_stretches(&self.path)?;
            let fit = stretches.iter().find(|stretch| stretch.end - stretch.start >= mib);
            let Some(start) = fit.map(|stretch| stretch.start) else {
                return Ok(None);
            };
            // Another process may have taken it since: then look again.
            if lock(&self.node, start, mib)? {
                self.held.insert(start, mib);
                return Ok(Some(start));
            }
        }
    }

    /// Gives back what begins at `start`; `false` where nothing does.
    pub(crate) fn give_back(&mut self, start: u64) -> io::Result<bool> {
        match self.held.remove(&start) {
            Some(mib) => unlock(&self.node, start, mib).map(|()| true),
            None => Ok(false),
        }
    }

    /// Whether a range lies within one piece that is held.
    pub(crate) fn holds(&self, start: u64, mib: u64) -> bool {
        let before = self.held.range(..=start).next_back();
        before.is_some_and(|(from, length)| start + mib <= from + length)
    }

    pub(crate) fn write(&self, start: u64, mib: u64, byte: u8) -> io::Result<()> {
        let content = vec![byte; usize::try_from(mib).unwrap_or(0)];
        self.node.write_all_at(&content, start)
    }

    pub(crate) fn read(&self, start: u64, mib: u64) -> io::Result<Vec<u8>> {
        let mut content = vec![0; usize::try_from(mib).unwrap_or(0)];
        self.node.read_exact_at(&mut content, start)?;
        Ok(content)
    }
}

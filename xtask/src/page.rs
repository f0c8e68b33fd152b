//! Builds the owner's page, which agent and desktop app hold inside of them: so it comes before they are compiled.

use std::process::Command;

use crate::commands;
use crate::places::Places;
use crate::setup;

/// Builds the page and says what it weighs; `None` without npm, where the agent says on its page how to build it.
///
/// # Errors
/// If npm is there and fails, or the page is over its size.
pub(crate) fn build(places: &Places) -> anyhow::Result<Option<Weight>> {
    let Ok(npm) = setup::program("npm") else {
        println!("npm is not here, so the owner's page is left out: install Node 20 to have it");
        return Ok(None);
    };
    let npm = |arguments: &[&str]| {
        let mut command = Command::new(&npm);
        command.current_dir(&places.root).args(arguments).env("NO_COLOR", "1");
        command
    };
    commands::run(&mut npm(&["ci", "--no-audit", "--no-fund", "--silent"]))?;
    let said = commands::output(&mut npm(&["run", "--silent", "build"]))?;
    Ok(weight(&said))
}

/// What the page weighs when it travels, in kilobytes of gzip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Weight {
    /// Its JavaScript.
    pub(crate) js_gzip_kb: f64,
}

/// As the page's own build prints it: `js 73.2 KB gzip of 250 KB allowed, css …`.
fn weight(said: &str) -> Option<Weight> {
    let line = said.lines().find_map(|line| line.strip_prefix("js "))?;
    Some(Weight {
        js_gzip_kb: line.split_whitespace().next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weight_is_read_from_among_what_the_build_says() {
        let said = "vite v8\n✓ built in 1 s\njs 73.2 KB gzip of 250 KB allowed, css 5.1 KB gzip\n";
        assert_eq!(weight(said), Some(Weight { js_gzip_kb: 73.2 }));
        assert_eq!(weight("js a lot\n"), None);
        assert_eq!(weight("built\n"), None);
    }
}

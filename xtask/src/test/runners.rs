//! Reads how many tests passed out of what cargo-nextest, rustdoc's test runner and vitest print. Only text in, numbers out.

use crate::test::tally::Tally;

/// The counts in nextest's closing line, or `None` if `line` is not one:
///
/// `     Summary [   0.512s] 9/12 tests run: 6 passed (1 slow, 1 flaky), 2 failed, 1 timed out, 4 skipped`
///
/// A flaky one failed and passed when it was tried again.
/// Whatever nextest counts that is neither passed nor skipped (failed, timed out, could not be started) has failed.
pub(crate) fn nextest_summary(line: &str) -> Option<Tally> {
    let rest = line.trim_start().strip_prefix("Summary [")?;
    let (_, counts) = rest.split_once("] ")?;
    let (run, counts) = counts.split_once(':')?;
    if !(run.ends_with("tests run") || run.ends_with("test run")) {
        return None;
    }
    let mut tally = Tally {
        again: details(counts)
            .find_map(|detail| detail.strip_suffix(" flaky")?.parse().ok())
            .unwrap_or(0),
        ..Tally::default()
    };
    for part in without_brackets(counts).split(',') {
        let (count, what) = part.trim().split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match what.trim() {
            "passed" => tally.passed += count,
            "skipped" => tally.skipped += count,
            _ => tally.failed += count,
        }
    }
    Some(tally)
}

/// The counts in a closing line of rustdoc's runner, of which there is one per crate, or `None` if `line` is not one:
///
/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.21s`
pub(crate) fn doctest_summary(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in counts.split(';') {
        match part.trim().split_once(' ') {
            Some((count, "passed")) => tally.passed += count.parse::<u64>().ok()?,
            Some((count, "failed")) => tally.failed += count.parse::<u64>().ok()?,
            Some((count, "ignored")) => tally.skipped += count.parse::<u64>().ok()?,
            _ => {}
        }
    }
    Some(tally)
}

/// The counts in vitest's closing line about tests (not the one about files), or `None` if `line` is not one:
///
/// `      Tests  1 failed | 11 passed | 2 skipped (14)`
pub(crate) fn vitest_summary(line: &str) -> Option<Tally> {
    let counts = line.trim_start().strip_prefix("Tests ")?;
    let mut tally = Tally::default();
    for part in without_brackets(counts).split('|') {
        let (count, what) = part.trim().split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match what.trim() {
            "passed" => tally.passed += count,
            "failed" => tally.failed += count,
            _ => tally.skipped += count,
        }
    }
    Some(tally)
}

/// What stands in round brackets, split at its commas.
fn details(text: &str) -> impl Iterator<Item = &str> {
    text.split('(')
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .flat_map(|(inside, _)| inside.split(',').map(str::trim))
}

/// `text` without what stands in round brackets, which are details of the count before them.
fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    text.chars()
        .filter(|character| {
            match character {
                '(' => depth += 1,
                ')' => {
                    depth = depth.saturating_sub(1);
                    return false;
                }
                _ => {}
            }
            depth == 0
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn tally(passed: u64, failed: u64, skipped: u64) -> Option<Tally> {
        Some(Tally {
            passed,
            failed,
            skipped,
            again: 0,
        })
    }

    #[test]
    fn nextest_s_closing_line_is_read_however_its_tests_ended() {
        for (line, expected) in [
            (
                "     Summary [   0.012s] 5 tests run: 5 passed, 0 skipped",
                tally(5, 0, 0),
            ),
            (
                "     Summary [   0.012s] 1 test run: 1 passed, 0 skipped",
                tally(1, 0, 0),
            ),
            (
                "     Summary [  61.250s] 9 tests run: 6 passed (1 slow, 2 leaky), 3 failed, 4 skipped",
                tally(6, 3, 4),
            ),
            (
                "     Summary [  61.250s] 9 tests run: 9 passed (1 slow, 12 flaky), 4 skipped",
                Some(Tally {
                    passed: 9,
                    skipped: 4,
                    again: 12,
                    ..Tally::default()
                }),
            ),
            (
                "     Summary [   2.000s] 8/12 tests run: 5 passed, 1 failed, 1 exec failed, 1 timed out, 0 skipped",
                tally(5, 3, 0),
            ),
            (
                "     Summary [   0.000s] 0 tests run: 0 passed, 7 skipped",
                tally(0, 0, 7),
            ),
            ("        PASS [   0.012s] (1/5) sela-core guard::tests::a_test", None),
            ("     Summary of what the test said: 5 passed", None),
            ("", None),
        ] {
            assert_eq!(nextest_summary(line), expected, "{line}");
        }
    }

    #[test]
    fn vitest_s_closing_line_is_read() {
        for (line, expected) in [
            ("      Tests  12 passed (12)", tally(12, 0, 0)),
            ("      Tests  1 failed | 11 passed | 2 skipped (14)", tally(11, 1, 2)),
            (" Test Files  1 failed | 3 passed (4)", None),
            ("Tests that nothing is read into", None),
        ] {
            assert_eq!(vitest_summary(line), expected, "{line}");
        }
    }

    #[test]
    fn rustdoc_s_closing_line_is_read() {
        for (line, expected) in [
            (
                "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.21s",
                tally(3, 0, 1),
            ),
            (
                "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out",
                tally(3, 2, 0),
            ),
            ("running 3 tests", None),
        ] {
            assert_eq!(doctest_summary(line), expected, "{line}");
        }
    }
}

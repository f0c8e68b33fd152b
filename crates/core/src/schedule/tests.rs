//! A schedule as its owner meets it: nights, changes of the clock, exceptions, calendars and the faults of each. That windows are
//! right at every moment of seven years is in `tests/schedule_oracle.rs`.

use super::calendar::{Calendar, End};
use super::calendar_tests::{by_calendar, mornings};
use super::*;
use jiff::civil::{DateTime, date};
use sela_protocol::units::{Millis, UtcMs};

pub(super) fn zones() -> Zones {
    Zones::bundled()
}

pub(super) fn plan(zone: &str, windows: &[(&str, &str)]) -> Plan {
    let window = |(days, hours): &(&str, &str)| Window {
        days: days.parse().expect("days"),
        hours: hours.parse().expect("hours"),
    };
    Plan {
        zone: zone.into(),
        week: Week::Windows(windows.iter().map(window).collect()),
        exceptions: Vec::new(),
        calendars: Vec::new(),
    }
}

pub(super) fn wall(text: &str) -> DateTime {
    text.parse().expect("a civil time")
}

/// A moment in UTC.
fn utc(text: &str) -> UtcMs {
    let at = TimeZone::UTC.to_timestamp(wall(text)).expect("a moment");
    UtcMs(at.as_millisecond())
}

pub(super) fn range(from: &str, to: &str) -> Slot {
    Slot::between(utc(from), utc(to)).expect("a range")
}

/// The open slots in UTC, `02T22:00/03T06:00`.
pub(super) fn open(plan: Plan, feeds: &Feeds, over: Slot) -> Vec<String> {
    let outlook = Schedule::of(plan, &zones()).expect("a plan").outlook(feeds, over);
    shown(outlook.open())
}

pub(super) fn shown(slots: &Slots) -> Vec<String> {
    let text = |at: UtcMs| {
        let at = jiff::Timestamp::from_millisecond(at.0).expect("a moment");
        TimeZone::UTC.to_datetime(at).strftime("%dT%H:%M").to_string()
    };
    slots
        .as_slice()
        .iter()
        .map(|slot| format!("{}/{}", text(slot.from), text(slot.to)))
        .collect()
}

#[test]
fn a_night_belongs_to_the_day_on_which_it_begins() {
    let nights = plan("UTC", &[("fri", "22:00-06:00")]);
    assert_eq!(
        open(nights, &Feeds::new(), range("2026-03-01T00:00", "2026-03-15T00:00")),
        ["06T22:00/07T06:00", "13T22:00/14T06:00"]
    );
}

#[test]
fn every_way_to_write_a_whole_day_is_a_whole_day() {
    for hours in ["00:00-00:00", "00:00-24:00"] {
        assert_eq!(
            open(
                plan("UTC", &[("tue-wed", hours)]),
                &Feeds::new(),
                range("2026-03-01T00:00", "2026-03-08T00:00")
            ),
            ["03T00:00/05T00:00"],
            "{hours}"
        );
    }
    // Windows that overlap or touch are one: the card is not taken away in between.
    let overlapping = plan(
        "UTC",
        &[
            ("tue", "08:00-12:00"),
            ("tue", "11:00-14:00"),
            ("tue", "14:00-24:00"),
            ("wed", "00:00-01:00"),
        ],
    );
    assert_eq!(
        open(
            overlapping,
            &Feeds::new(),
            range("2026-03-01T00:00", "2026-03-08T00:00")
        ),
        ["03T08:00/04T01:00"]
    );
}

#[test]
fn an_hour_that_the_clock_leaves_out_is_not_there_and_one_that_it_repeats_counts_twice() {
    let nights = || plan("Europe/Berlin", &[("sun", "02:00-03:00"), ("sun", "01:00-05:00")]);
    // 01:00 to 05:00 is three hours when the clock is put forward, five when it is put back.
    assert_eq!(
        open(nights(), &Feeds::new(), range("2026-03-29T00:00", "2026-03-30T00:00")),
        ["29T00:00/29T03:00"]
    );
    assert_eq!(
        open(nights(), &Feeds::new(), range("2026-10-24T12:00", "2026-10-26T00:00")),
        ["24T23:00/25T04:00"]
    );
    let left_out = plan("Europe/Berlin", &[("sun", "02:00-03:00")]);
    assert!(open(left_out, &Feeds::new(), range("2026-03-28T12:00", "2026-03-29T12:00")).is_empty());
}

#[test]
fn an_exception_says_everything_about_its_dates() {
    let mut nights = plan("UTC", &[("daily", "20:00-06:00")]);
    let exception = |from, to, hours: &[&str]| Exception {
        from,
        to,
        hours: hours.iter().map(|hours| hours.parse().expect("hours")).collect(),
    };
    nights.exceptions = vec![
        exception(date(2026, 12, 24), date(2026, 12, 25), &[]),
        exception(date(2026, 12, 27), date(2026, 12, 27), &["10:00-12:00", "23:00-02:00"]),
    ];
    assert_eq!(
        open(nights, &Feeds::new(), range("2026-12-23T12:00", "2026-12-28T12:00")),
        [
            "23T20:00/24T00:00",
            "26T20:00/27T00:00",
            "27T10:00/27T12:00",
            "27T23:00/28T02:00"
        ]
    );
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    let exception = Exception {
        from: date(2026, 5, 2),
        to: date(2026, 5, 1),
        hours: Vec::new(),
    };
    let mut backwards = plan("UTC", &[]);
    backwards.exceptions.push(exception);
    let no_day = Plan {
        week: Week::Windows(vec![Window {
            days: Days::default(),
            hours: "08:00-09:00".parse().expect("hours"),
        }]),
        ..plan("UTC", &[])
    };
    for (plan, word) in [
        (plan("Europe/Atlantis", &[]), "no time zone \"Europe/Atlantis\""),
        (backwards, "ends before it begins"),
        (no_day, "on no day of the week"),
    ] {
        let fault = Schedule::of(plan, &zones()).expect_err(word).to_string();
        assert!(fault.contains(word), "{fault}");
    }
    assert!(
        "24:00-06:00"
            .parse::<Hours>()
            .expect_err("24:00")
            .to_string()
            .contains("begins at 24:00")
    );
}

#[test]
fn it_is_asked_by_level_so_that_a_start_slept_through_is_not_missed() {
    let schedule = Schedule::of(plan("UTC", &[("daily", "20:00-06:00")]), &zones()).expect("a plan");
    let outlook = schedule.outlook(&Feeds::new(), range("2026-03-01T00:00", "2026-04-01T00:00"));
    // The PC slept from 19:59 to 23:10.
    assert!(!outlook.is_open(utc("2026-03-04T19:59:59.999")));
    assert_eq!(
        outlook.standing(utc("2026-03-04T23:10")),
        Standing {
            open: true,
            until: Some(utc("2026-03-05T06:00"))
        }
    );
    // And the clock was set back by a day.
    assert_eq!(
        outlook.next_change(utc("2026-03-03T12:00")),
        Some(utc("2026-03-03T20:00"))
    );
    assert!(
        !outlook.is_open(utc("2026-05-01T23:00")),
        "outside its range nothing is open"
    );
    assert!(outlook.reaches(utc("2026-03-04T00:00"), Millis::from_secs(86_400)));
    assert!(!outlook.reaches(utc("2026-03-31T12:00"), Millis::from_secs(86_400)));
}

#[test]
fn a_preview_shows_fourteen_days_and_marks_the_change_of_the_clock() {
    let schedule = Schedule::of(plan("Europe/Berlin", &[("daily", "20:00-06:00")]), &zones()).expect("a plan");
    let preview = preview(&schedule, &Feeds::new(), utc("2026-03-20T15:00"), 14);
    assert_eq!(preview.days.len(), 14);
    let changes: Vec<_> = preview.days.iter().filter(|day| day.clock_change.is_some()).collect();
    assert_eq!(changes.len(), 1);
    let day = changes[0];
    assert_eq!(day.date, "2026-03-29");
    let change = day.clock_change.clone().expect("marked");
    assert_eq!(
        (change.from.as_str(), change.to.as_str(), change.at_utc_ms),
        ("02:00", "03:00", utc("2026-03-29T01:00"))
    );
    let hours: Vec<_> = day
        .open
        .iter()
        .map(|open| (open.from.as_str(), open.to.as_str()))
        .collect();
    assert_eq!(hours, [("00:00", "06:00"), ("20:00", "24:00")]);
    assert_eq!(
        day.open[0].to_utc_ms.since(day.open[0].from_utc_ms),
        Millis::from_secs(5 * 3_600)
    );
}

#[test]
fn a_plan_is_written_and_read_again_unchanged() {
    let mut written = by_calendar(Meaning::Closes);
    written.week = Week::Windows(vec![Window {
        days: "mon-fri".parse().expect("days"),
        hours: "22:00-06:30".parse().expect("hours"),
    }]);
    let text = serde_json::to_string(&written).expect("writes");
    assert!(
        text.contains("\"22:00-06:30\"") && text.contains("\"mon,tue,wed,thu,fri\""),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Plan>(&text).expect(&text), written);
    let calendar = Calendar {
        events: vec![mornings(End::Never)],
        ..Calendar::default()
    };
    let text = serde_json::to_string(&calendar).expect("writes");
    assert_eq!(serde_json::from_str::<Calendar>(&text).expect(&text), calendar);
}

//! A schedule as its owner meets it: nights, changes of the clock, exceptions, calendars and the faults of each. That windows are
//! right at every moment of seven years is in `tests/schedule_oracle.rs`.

use super::calendar::{Calendar, End, Event, Every, InsteadOf, LastGood, Length, Moment, Observance, Rule};
use super::*;
use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use sela_protocol::units::{Millis, UtcMs};

fn zones() -> Zones {
    Zones::bundled()
}

fn plan(zone: &str, windows: &[(&str, &str)]) -> Plan {
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

fn wall(text: &str) -> DateTime {
    text.parse().expect("a civil time")
}

/// A moment in UTC.
fn utc(text: &str) -> UtcMs {
    let at = TimeZone::UTC.to_timestamp(wall(text)).expect("a moment");
    UtcMs(at.as_millisecond())
}

fn range(from: &str, to: &str) -> Slot {
    Slot::between(utc(from), utc(to)).expect("a range")
}

/// The open slots in UTC, `02T22:00/03T06:00`.
fn open(plan: Plan, feeds: &Feeds, over: Slot) -> Vec<String> {
    let outlook = Schedule::of(plan, &zones()).expect("a plan").outlook(feeds, over);
    shown(outlook.open())
}

fn shown(slots: &Slots) -> Vec<String> {
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

fn event(uid: &str, start: Moment, length: Length) -> Event {
    Event {
        uid: uid.into(),
        instead_of: None,
        start,
        length,
        rules: Vec::new(),
        dates: Vec::new(),
        except: Vec::new(),
        cancelled: false,
        free: false,
        sequence: 0,
    }
}

fn berlin(text: &str) -> Moment {
    Moment::In(wall(text), "Europe/Berlin".into())
}

/// Each morning from nine to ten in Berlin, from the first of March on.
fn mornings(end: End) -> Event {
    Event {
        rules: vec![Rule {
            end,
            ..Rule::every(Every::Day)
        }],
        ..event(
            "morning",
            berlin("2026-03-01T09:00"),
            Length::Until(berlin("2026-03-01T10:00")),
        )
    }
}

fn feeds(events: Vec<Event>) -> Feeds {
    let mut feed = Feed::default();
    let calendar = Calendar {
        events,
        ..Calendar::default()
    };
    feed.heard(Ok(calendar), UtcMs(0));
    Feeds::from([("work".into(), feed)])
}

fn by_calendar(meaning: Meaning) -> Plan {
    Plan {
        week: match meaning {
            Meaning::Opens => Week::Windows(Vec::new()),
            Meaning::Closes => Week::Always,
        },
        calendars: vec![CalendarUse {
            name: "work".into(),
            meaning,
        }],
        ..plan("Europe/Berlin", &[])
    }
}

fn opened(events: Vec<Event>, over: Slot) -> Vec<String> {
    open(by_calendar(Meaning::Opens), &feeds(events), over)
}

fn changed(of: &str, instead_of: &str, and_later: bool, start: &str, end: &str) -> Event {
    Event {
        instead_of: Some(InsteadOf {
            start: berlin(instead_of),
            and_later,
        }),
        ..event(of, berlin(start), Length::Until(berlin(end)))
    }
}

#[test]
fn a_repeated_event_stays_at_its_hour_on_the_wall_when_the_clock_is_changed() {
    assert_eq!(
        opened(
            vec![mornings(End::Never)],
            range("2026-03-28T00:00", "2026-03-30T00:00")
        ),
        ["28T08:00/28T09:00", "29T07:00/29T08:00"]
    );
}

#[test]
fn moved_and_cancelled_occurrences_and_dates_left_out_are_followed() {
    let mut series = mornings(End::After(6));
    series.except = vec![berlin("2026-03-02T09:00"), Moment::Day(date(2026, 3, 3))];
    series.dates = vec![
        (berlin("2026-03-08T20:00"), None),
        (
            Moment::Utc(wall("2026-03-09T01:00")),
            Some(Length::Nominal {
                days: 0,
                time: SignedDuration::from_hours(3),
            }),
        ),
    ];
    let moved = changed(
        "morning",
        "2026-03-04T09:00",
        false,
        "2026-03-04T15:00",
        "2026-03-04T17:00",
    );
    let cancelled = Event {
        cancelled: true,
        ..changed(
            "morning",
            "2026-03-05T09:00",
            false,
            "2026-03-05T09:00",
            "2026-03-05T10:00",
        )
    };
    assert_eq!(
        opened(
            vec![cancelled, series, moved],
            range("2026-03-01T00:00", "2026-03-12T00:00")
        ),
        [
            "01T08:00/01T09:00",
            "04T14:00/04T16:00",
            "06T08:00/06T09:00",
            "08T19:00/08T20:00",
            "09T01:00/09T04:00"
        ]
    );
}

#[test]
fn an_occurrence_moved_into_the_range_from_far_away_is_found() {
    let moved = changed(
        "morning",
        "2026-06-01T09:00",
        false,
        "2026-03-02T15:00",
        "2026-03-02T16:00",
    );
    assert_eq!(
        opened(
            vec![mornings(End::Never), moved],
            range("2026-03-02T12:00", "2026-03-03T00:00")
        ),
        ["02T14:00/02T15:00"]
    );
}

#[test]
fn this_and_all_later_ones_move_together_and_a_later_single_one_stands() {
    let later = changed(
        "morning",
        "2026-03-03T09:00",
        true,
        "2026-03-03T11:00",
        "2026-03-03T11:30",
    );
    let single = changed(
        "morning",
        "2026-03-05T09:00",
        false,
        "2026-03-05T20:00",
        "2026-03-05T21:00",
    );
    let over = range("2026-03-02T00:00", "2026-03-07T00:00");
    assert_eq!(
        opened(vec![mornings(End::Never), later, single], over),
        [
            "02T08:00/02T09:00",
            "03T10:00/03T10:30",
            "04T10:00/04T10:30",
            "05T19:00/05T20:00",
            "06T10:00/06T10:30"
        ]
    );
    let gone = Event {
        cancelled: true,
        ..changed(
            "morning",
            "2026-03-03T09:00",
            true,
            "2026-03-03T09:00",
            "2026-03-03T10:00",
        )
    };
    assert_eq!(opened(vec![mornings(End::Never), gone], over), ["02T08:00/02T09:00"]);
}

#[test]
fn the_newest_word_on_an_occurrence_stands_in_whatever_order_it_is_written() {
    let old = changed(
        "morning",
        "2026-03-02T09:00",
        false,
        "2026-03-02T12:00",
        "2026-03-02T13:00",
    );
    let new = Event {
        sequence: 2,
        ..changed(
            "morning",
            "2026-03-02T09:00",
            false,
            "2026-03-02T16:00",
            "2026-03-02T17:00",
        )
    };
    let over = range("2026-03-02T00:00", "2026-03-03T00:00");
    for events in [
        vec![mornings(End::Never), old.clone(), new.clone()],
        vec![new, old, mornings(End::Never)],
    ] {
        assert_eq!(opened(events, over), ["02T15:00/02T16:00"]);
    }
}

#[test]
fn a_whole_day_is_the_owners_day_and_a_last_moment_is_kept() {
    let day = event("day", Moment::Day(date(2026, 3, 29)), Length::Unsaid);
    assert_eq!(
        opened(vec![day], range("2026-03-28T00:00", "2026-03-31T00:00")),
        ["28T23:00/29T22:00"]
    );
    for last in [
        Moment::Utc(wall("2026-03-02T08:00")),
        Moment::Floating(wall("2026-03-02T09:00")),
        Moment::Day(date(2026, 3, 2)),
    ] {
        assert_eq!(
            opened(
                vec![mornings(End::Last(last))],
                range("2026-03-01T00:00", "2026-03-09T00:00")
            ),
            ["01T08:00/01T09:00", "02T08:00/02T09:00"]
        );
    }
}

#[test]
fn a_calendar_that_closes_takes_hours_away_and_what_is_shown_as_free_does_not() {
    let free = Event {
        free: true,
        ..event(
            "free",
            berlin("2026-03-02T13:00"),
            Length::Until(berlin("2026-03-02T15:00")),
        )
    };
    let busy = open(
        by_calendar(Meaning::Closes),
        &feeds(vec![mornings(End::Never), free]),
        range("2026-03-02T00:00", "2026-03-03T00:00"),
    );
    assert_eq!(busy, ["02T00:00/02T08:00", "02T09:00/03T00:00"]);
}

#[test]
fn zones_are_found_by_the_names_that_windows_and_other_programs_give_them() {
    for zone in [
        "Europe/Berlin",
        "W. Europe Standard Time",
        "\"W. Europe Standard Time\"",
        "/freeassociation.sourceforge.net/Europe/Berlin",
    ] {
        let at = |text| Moment::In(wall(text), zone.into());
        let meeting = event("m", at("2026-07-01T09:00"), Length::Until(at("2026-07-01T10:00")));
        assert_eq!(
            opened(vec![meeting], range("2026-07-01T00:00", "2026-07-02T00:00")),
            ["01T07:00/01T08:00"],
            "{zone}"
        );
    }
}

#[test]
fn a_zone_that_a_calendar_defines_itself_is_followed_through_its_changes() {
    let observance = |start, before, ahead, month, which| Observance {
        start: wall(start),
        ahead_before: before * 3_600,
        ahead: ahead * 3_600,
        rules: vec![Rule {
            by_month: vec![month],
            by_day: vec![calendar::NamedDay {
                which: Some(which),
                day: jiff::civil::Weekday::Sunday,
            }],
            ..Rule::every(Every::Year)
        }],
        dates: Vec::new(),
    };
    let calendar = Calendar {
        zones: [(
            "Customized Time Zone".to_owned(),
            vec![
                observance("1601-01-01T03:00:00", 2, 1, 10, -1),
                observance("1601-01-01T02:00:00", 1, 2, 3, -1),
            ],
        )]
        .into(),
        events: ["2026-01-10", "2026-03-29", "2026-07-10", "2026-10-25"]
            .iter()
            .map(|date| {
                let at = |time: &str| Moment::In(wall(&format!("{date}T{time}")), "Customized Time Zone".into());
                event(date, at("02:30"), Length::Until(at("03:30")))
            })
            .collect(),
        ..Calendar::default()
    };
    let mut feed = Feed::default();
    feed.heard(Ok(calendar), UtcMs(0));
    let slots = open(
        by_calendar(Meaning::Opens),
        &Feeds::from([("work".into(), feed)]),
        range("2026-01-01T00:00", "2027-01-01T00:00"),
    );
    // 02:30 on 29 March is left out: read as before the change. On 25 October it comes twice: the first.
    // And an event from 02:30 to 03:30 on 29 March has no length: both are the same moment.
    assert_eq!(slots, ["10T01:30/10T02:30", "10T00:30/10T01:30", "25T00:30/25T02:30"]);
}

#[test]
fn an_event_whose_zone_nobody_knows_closes_all_hours_that_it_could_mean_and_opens_none() {
    let at = |text| Moment::In(wall(text), "Customized Time Zone".into());
    let events = || {
        vec![event(
            "m",
            at("2026-07-10T12:00"),
            Length::Until(at("2026-07-10T13:00")),
        )]
    };
    let over = range("2026-07-09T00:00", "2026-07-12T00:00");
    let schedule = |meaning| Schedule::of(by_calendar(meaning), &zones()).expect("a plan");
    let opens = schedule(Meaning::Opens).outlook(&feeds(events()), over);
    assert_eq!(shown(opens.open()), Vec::<String>::new());
    assert!(
        opens.unsure().is_empty() && opens.notes()[0].contains("Customized Time Zone"),
        "{opens:?}"
    );
    let closes = schedule(Meaning::Closes).outlook(&feeds(events()), over);
    assert_eq!(shown(closes.open()), ["09T00:00/09T21:00", "11T02:00/12T00:00"]);
    assert!(
        closes.unsure()[0].contains("which neither the calendar nor"),
        "{closes:?}"
    );
}

#[test]
fn an_endless_rule_costs_a_bounded_look_and_says_so() {
    let hostile = |uid: usize| Event {
        uid: uid.to_string(),
        rules: vec![Rule::every(Every::Second)],
        ..mornings(End::Never)
    };
    let schedule = Schedule::of(by_calendar(Meaning::Closes), &zones()).expect("a plan");
    let outlook = schedule.outlook(
        &feeds((0..50).map(hostile).collect()),
        range("2026-03-01T00:00", "2026-04-05T00:00"),
    );
    assert_eq!(outlook.unsure().len(), 1, "{:?}", outlook.unsure());
    assert!(
        outlook.unsure()[0].contains("repeats so often"),
        "{:?}",
        outlook.unsure()
    );
}

#[test]
fn an_event_that_ends_before_it_begins_is_told_and_none() {
    let backwards = event(
        "b",
        berlin("2026-03-02T10:00"),
        Length::Until(berlin("2026-03-02T09:00")),
    );
    let schedule = Schedule::of(by_calendar(Meaning::Closes), &zones()).expect("a plan");
    let outlook = schedule.outlook(&feeds(vec![backwards]), range("2026-03-02T00:00", "2026-03-03T00:00"));
    assert!(outlook.unsure()[0].contains("ends before it begins"), "{outlook:?}");
    assert_eq!(shown(outlook.open()), ["02T00:00/03T00:00"]);
}

#[test]
fn a_feed_that_fails_keeps_its_last_good_state_and_says_so() {
    let over = range("2026-03-02T00:00", "2026-03-03T00:00");
    let mut feeds = feeds(vec![mornings(End::Never)]);
    let good = open(by_calendar(Meaning::Closes), &feeds, over);
    let feed = feeds.get_mut("work").expect("the feed");
    feed.heard(Err("the server sent a web page, as for logging in".into()), UtcMs(9));
    assert!(matches!(
        feed,
        Feed {
            last_good: Some(LastGood {
                read_utc_ms: UtcMs(0),
                ..
            }),
            ..
        }
    ));
    assert_eq!(open(by_calendar(Meaning::Closes), &feeds, over), good);
    let schedule = Schedule::of(by_calendar(Meaning::Closes), &zones()).expect("a plan");
    let outlook = schedule.outlook(&feeds, over);
    assert!(outlook.unsure().is_empty());
    assert!(
        outlook.notes()[0].contains("web page") && outlook.notes()[0].contains("stays in force"),
        "{outlook:?}"
    );
    // One that was never read may close anything.
    let mut never = Feed::default();
    never.heard(Err("the server does not answer".into()), UtcMs(0));
    for feeds in [Feeds::new(), Feeds::from([("work".into(), never)])] {
        assert_eq!(schedule.outlook(&feeds, over).unsure().len(), 1);
    }
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

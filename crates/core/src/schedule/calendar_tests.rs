//! Calendars as their owner meets them: moved and cancelled events, zones that nobody knows, rules without end, feeds that fail.

use super::calendar::{self, Calendar, End, Event, Every, InsteadOf, LastGood, Length, Moment, Observance, Rule};
use super::tests::{open, plan, range, shown, wall, zones};
use super::*;
use jiff::SignedDuration;
use jiff::civil::date;
use sela_protocol::units::UtcMs;

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
pub(super) fn mornings(end: End) -> Event {
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

pub(super) fn by_calendar(meaning: Meaning) -> Plan {
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

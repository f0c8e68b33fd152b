//! Weekly windows against an oracle that knows nothing of slots, stretches or sets: it asks for each minute anew what the clock on the
//! wall shows, and looks whether that is a time that the plan names. A slice runs with all tests; the whole under `cargo xtask soak schedule`.

#![allow(clippy::unwrap_used, reason = "all of this file is a test")]

use jiff::civil::{Date, DateTime, Weekday, date};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use sela_core::schedule::{Exception, Feeds, Hours, Outlook, Plan, Schedule, Slot, TimeOfDay, Week, Window, Zones};
use sela_protocol::units::UtcMs;

const MINUTE: i64 = 60_000;
/// Random plans of each run.
const CASES: u32 = 64;

/// Zones with every habit there is: half hours, two hours, changes at midnight, by Ramadan, in the past only, and none.
const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Lisbon",
    "Europe/Chisinau",
    "Europe/Moscow",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Johannesburg",
    "Africa/Lagos",
    "Antarctica/Troll",
    "America/Asuncion",
    "America/Bogota",
    "America/Chicago",
    "America/Godthab",
    "America/Havana",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/Miquelon",
    "America/New_York",
    "America/Nuuk",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",
    "Asia/Almaty",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Hebron",
    "Asia/Jakarta",
    "Asia/Jayapura",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Makassar",
    "Asia/Singapore",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Eucla",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Easter",
    "Pacific/Kiritimati",
    "Pacific/Norfolk",
];

struct Oracle<'a> {
    zone: TimeZone,
    plan: &'a Plan,
}

impl Oracle<'_> {
    fn is_open(&self, at: i64) -> bool {
        let wall = self.zone.to_datetime(Timestamp::from_millisecond(at).unwrap());
        let today = self.is_named(wall.date(), wall);
        let excepted = self
            .plan
            .exceptions
            .iter()
            .any(|e| e.from <= wall.date() && wall.date() <= e.to);
        today || (!excepted && self.is_named(wall.date().yesterday().unwrap(), wall))
    }

    /// Whether hours that begin on `day` hold what the wall shows.
    fn is_named(&self, day: Date, wall: DateTime) -> bool {
        let excepting: Vec<_> = self
            .plan
            .exceptions
            .iter()
            .filter(|e| e.from <= day && day <= e.to)
            .collect();
        let hours: Vec<Hours> = if excepting.is_empty() {
            match &self.plan.week {
                Week::Always => return day == wall.date(),
                Week::Windows(windows) => windows
                    .iter()
                    .filter(|window| window.days.has(day.weekday()))
                    .map(|window| window.hours)
                    .collect(),
            }
        } else {
            excepting.into_iter().flat_map(|e| e.hours.clone()).collect()
        };
        hours.into_iter().any(|hours| {
            let at = |time: TimeOfDay| day.at(0, 0, 0, 0) + i64::from(time.minutes()).minutes();
            let (from, mut to) = (at(hours.from), at(hours.to));
            if to <= from {
                to += 1.day();
            }
            from <= wall && wall < to
        })
    }
}

/// Steps through a range by the minute and holds level, next change and slots against the oracle.
fn check(plan: &Plan, zone: &TimeZone, from: i64, to: i64) {
    let schedule = Schedule::of(plan.clone(), &Zones::bundled()).expect("a plan");
    let range = Slot::between(UtcMs(from), UtcMs(to)).expect("a range");
    let outlook: Outlook = schedule.outlook(&Feeds::new(), range);
    let oracle = Oracle {
        zone: zone.clone(),
        plan,
    };
    let levels: Vec<bool> = (from..to)
        .step_by(MINUTE as usize)
        .map(|at| oracle.is_open(at))
        .collect();
    let mut next = None;
    for (number, level) in levels.iter().enumerate().rev() {
        let at = UtcMs(from + number as i64 * MINUTE);
        if levels.get(number + 1).is_some_and(|later| later != level) {
            next = Some(UtcMs(at.0 + MINUTE));
        }
        let standing = outlook.standing(at);
        assert_eq!(
            (standing.open, standing.until),
            (*level, next),
            "{} at {at:?} in {plan:?}",
            plan.zone
        );
    }
}

fn window(days: &str, hours: &str) -> Window {
    Window {
        days: days.parse().unwrap(),
        hours: hours.parse().unwrap(),
    }
}

fn plans(zone: &str) -> Vec<Plan> {
    let plan = |windows: &[(&str, &str)], exceptions| Plan {
        zone: zone.into(),
        week: Week::Windows(windows.iter().map(|(days, hours)| window(days, hours)).collect()),
        exceptions,
        calendars: Vec::new(),
    };
    vec![
        plan(
            &[
                ("daily", "23:30-00:30"),
                ("daily", "02:00-02:45"),
                ("sun", "03:00-03:01"),
            ],
            Vec::new(),
        ),
        plan(
            &[
                ("sat", "22:00-06:00"),
                ("mon-fri", "00:00-00:00"),
                ("sun", "01:15-24:00"),
            ],
            Vec::new(),
        ),
        plan(&[], Vec::new()),
    ]
}

/// Each change of each zone's clock in a span of years, with so much around it.
fn around_every_change(zones: &[&str], years: std::ops::Range<i16>, around: i64) -> usize {
    let database = TimeZoneDatabase::bundled();
    let mut changes = 0;
    for name in zones {
        let zone = database.get(name).expect(name);
        let (first, last) = (date(years.start, 1, 1), date(years.end, 1, 1));
        let start = TimeZone::UTC.to_timestamp(first.at(0, 0, 0, 0)).unwrap();
        let end = TimeZone::UTC.to_timestamp(last.at(0, 0, 0, 0)).unwrap();
        for change in zone.following(start).take_while(|change| change.timestamp() < end) {
            changes += 1;
            let at = change.timestamp().as_millisecond();
            for plan in plans(name) {
                check(&plan, &zone, at - around, at + around);
            }
        }
    }
    changes
}

#[test]
fn the_week_is_right_at_every_minute_around_changes_of_the_clock() {
    let changes = around_every_change(ZONES, 2026..2027, 90 * MINUTE);
    assert!(changes > 60, "{changes}");
}

#[test]
#[ignore = "the whole: minutes, under `cargo xtask soak schedule`"]
fn the_week_is_right_at_every_minute_around_all_changes_of_seven_years() {
    let changes = around_every_change(ZONES, 2024..2031, 26 * 60 * MINUTE);
    assert!(changes > 400, "{changes}");
    // And a year that left a day out, and an hour of one that was repeated twice.
    around_every_change(&["Pacific/Apia"], 2011..2013, 40 * 60 * MINUTE);
}

fn some_time() -> impl Strategy<Value = TimeOfDay> {
    (0_u16..=24, prop_oneof![Just(0_u16), Just(30), 0_u16..60])
        .prop_map(|(hour, minute)| TimeOfDay::new(hour, if hour == 24 { 0 } else { minute }).expect("a time"))
}

fn some_hours() -> impl Strategy<Value = Hours> {
    (some_time(), some_time())
        .prop_filter("begins at 24:00", |(from, _)| from.minutes() < 1440)
        .prop_map(|(from, to)| Hours { from, to })
}

fn some_plan() -> impl Strategy<Value = Plan> {
    let day = (1_i8..=7).prop_map(|day| Weekday::from_monday_one_offset(day).unwrap());
    let days = proptest::collection::vec(day, 1..5).prop_map(|days| days.into_iter().collect());
    let window = (days, some_hours()).prop_map(|(days, hours)| Window { days, hours });
    let exception =
        (0_i32..14, 0_i32..3, proptest::collection::vec(some_hours(), 0..3)).prop_map(|(from, length, hours)| {
            let from = date(2026, 10, 20).saturating_add(from.days());
            Exception {
                from,
                to: from.saturating_add(length.days()),
                hours,
            }
        });
    let week = prop_oneof![
        1 => Just(Week::Always),
        5 => proptest::collection::vec(window, 0..5).prop_map(Week::Windows),
    ];
    (
        proptest::sample::select(ZONES),
        week,
        proptest::collection::vec(exception, 0..3),
    )
        .prop_map(|(zone, week, exceptions)| Plan {
            zone: zone.into(),
            week,
            exceptions,
            calendars: Vec::new(),
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn any_plan_is_open_exactly_when_the_wall_shows_a_time_in_it(plan in some_plan(), start in 0_i64..12 * 24 * 60) {
        let zone = TimeZoneDatabase::bundled().get(&plan.zone).unwrap();
        let from = TimeZone::UTC.to_timestamp(date(2026, 10, 20).at(0, 0, 0, 0)).unwrap().as_millisecond() + start * MINUTE;
        check(&plan, &zone, from, from + 30 * 60 * MINUTE);
    }
}

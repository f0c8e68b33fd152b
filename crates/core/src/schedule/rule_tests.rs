//! Rules on the wall: the standard's own examples, and what must not cost without end. Whole calendars, read from text, are tried in
//! `sela-sensors`.

use super::*;
use crate::schedule::calendar::NamedDay;
use jiff::civil::date;

const MUCH: u32 = 100_000;

fn starts_of(rule: &Rule, first: DateTime, until: Date) -> Vec<String> {
    let mut budget = Budget::of(MUCH);
    let starts = starts(rule, first, DateTime::MIN..=until.at(23, 59, 59, 0), &mut budget);
    assert!(!budget.is_spent());
    starts
        .iter()
        .map(|at| at.strftime("%Y-%m-%d %H:%M").to_string())
        .collect()
}

fn dates_of(rule: &Rule, first: Date, until: Date) -> Vec<String> {
    let starts = starts_of(rule, first.at(9, 0, 0, 0), until);
    starts
        .iter()
        .map(|at| at.trim_end_matches(" 09:00").to_owned())
        .collect()
}

fn on(which: Option<i16>, day: Weekday) -> NamedDay {
    NamedDay { which, day }
}

#[test]
fn the_standards_examples_come_out_as_the_standard_says() {
    let first = date(1997, 9, 2);
    let last_days = Rule {
        by_month_day: vec![-1],
        end: End::After(3),
        ..Rule::every(Every::Month)
    };
    assert_eq!(
        dates_of(&last_days, date(1997, 9, 30), date(1998, 12, 31)),
        ["1997-09-30", "1997-10-31", "1997-11-30"]
    );
    let friday_13th = Rule {
        by_day: vec![on(None, Weekday::Friday)],
        by_month_day: vec![13],
        ..Rule::every(Every::Month)
    };
    assert_eq!(
        dates_of(&friday_13th, first, date(1999, 12, 31)),
        ["1997-09-02", "1998-02-13", "1998-03-13", "1998-11-13", "1999-08-13"]
    );
    let twentieth_monday = Rule {
        by_day: vec![on(Some(20), Weekday::Monday)],
        ..Rule::every(Every::Year)
    };
    assert_eq!(
        dates_of(&twentieth_monday, date(1997, 5, 19), date(1999, 12, 31)),
        ["1997-05-19", "1998-05-18", "1999-05-17"]
    );
    let monday_of_week_20 = Rule {
        by_week: vec![20],
        by_day: vec![on(None, Weekday::Monday)],
        ..Rule::every(Every::Year)
    };
    assert_eq!(
        dates_of(&monday_of_week_20, date(1997, 5, 12), date(1999, 12, 31)),
        ["1997-05-12", "1998-05-11", "1999-05-17"]
    );
    let election_day = Rule {
        interval: 4,
        by_month: vec![11],
        by_day: vec![on(None, Weekday::Tuesday)],
        by_month_day: (2..=8).collect(),
        ..Rule::every(Every::Year)
    };
    assert_eq!(
        dates_of(&election_day, date(1996, 11, 5), date(2004, 12, 31)),
        ["1996-11-05", "2000-11-07", "2004-11-02"]
    );
    let last_work_day_but_one = Rule {
        by_day: Weekday::Monday
            .cycle_forward()
            .take(5)
            .map(|day| on(None, day))
            .collect(),
        by_position: vec![-2],
        end: End::After(4),
        ..Rule::every(Every::Month)
    };
    assert_eq!(
        dates_of(&last_work_day_but_one, date(1997, 9, 29), date(1999, 1, 1)),
        ["1997-09-29", "1997-10-30", "1997-11-27", "1997-12-30"]
    );
}

#[test]
fn the_day_on_which_a_week_begins_makes_the_difference_that_the_standard_shows() {
    for (week_start, dates) in [
        (
            Weekday::Monday,
            ["1997-08-05", "1997-08-10", "1997-08-19", "1997-08-24"],
        ),
        (
            Weekday::Sunday,
            ["1997-08-05", "1997-08-17", "1997-08-19", "1997-08-31"],
        ),
    ] {
        let rule = Rule {
            interval: 2,
            end: End::After(4),
            by_day: vec![on(None, Weekday::Tuesday), on(None, Weekday::Sunday)],
            week_start,
            ..Rule::every(Every::Week)
        };
        assert_eq!(dates_of(&rule, date(1997, 8, 5), date(1998, 1, 1)), dates);
    }
}

#[test]
fn what_repeats_by_the_minute_keeps_to_the_hours_it_names() {
    let rule = Rule {
        interval: 20,
        by_hour: vec![9, 16],
        by_month: vec![9],
        ..Rule::every(Every::Minute)
    };
    let starts = starts_of(&rule, date(2026, 9, 29).at(9, 0, 0, 0), date(2027, 9, 1));
    assert_eq!(starts.len(), 18);
    assert_eq!(
        starts[3..7],
        [
            "2026-09-29 16:00",
            "2026-09-29 16:20",
            "2026-09-29 16:40",
            "2026-09-30 09:00"
        ]
    );
    assert_eq!(starts[17], "2027-09-01 16:40");
}

#[test]
fn a_look_at_today_costs_the_same_however_long_ago_a_rule_began() {
    for every in [
        Every::Second,
        Every::Minute,
        Every::Hour,
        Every::Day,
        Every::Week,
        Every::Month,
        Every::Year,
    ] {
        let rule = Rule {
            by_hour: vec![7],
            ..Rule::every(every)
        };
        let from = date(2026, 1, 1).at(0, 0, 0, 0);
        let mut budget = Budget::of(20_000);
        let days = if every < Every::Week { 1 } else { 366 };
        let range = from..=from.saturating_add(days.days());
        let found = starts(&rule, date(1601, 1, 1).at(7, 0, 0, 0), range, &mut budget);
        assert!(!budget.is_spent(), "{every:?}");
        assert_eq!(found.first().map(|start| start.hour()), Some(7), "{every:?}");
    }
}

#[test]
fn what_never_happens_or_happens_each_second_ends_the_looking() {
    let never = Rule {
        by_month: vec![2],
        by_month_day: vec![30],
        ..Rule::every(Every::Second)
    };
    let first = date(2026, 1, 1).at(0, 0, 0, 0);
    let mut budget = Budget::of(MUCH);
    assert_eq!(
        starts(&never, first, first..=first.saturating_add(60.days()), &mut budget),
        [first]
    );
    assert!(!budget.is_spent());
    let always = Rule::every(Every::Second);
    let found = starts(&always, first, first..=first.saturating_add(60.days()), &mut budget);
    assert!(budget.is_spent());
    assert!(found.len() < MUCH as usize);
}

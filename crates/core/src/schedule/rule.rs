//! When a recurrence rule (RFC 5545, 3.3.10) says that something begins, on the wall. Zones, exceptions and lengths are not
//! known here. Work is counted, and stops where a calendar asks for too much of it.

use super::calendar::{End, Every, Moment, Rule};
use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::{SignedDuration, ToSpan};
use std::ops::RangeInclusive;

/// How much work a calendar may still ask for, in looks at a day or a moment.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    left: u32,
    asked_for_more: bool,
}

impl Budget {
    pub(super) const fn of(looks: u32) -> Self {
        Self {
            left: looks,
            asked_for_more: false,
        }
    }

    /// Whether one more look may be taken.
    pub(super) const fn take(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => self.asked_for_more = true,
        }
        !self.asked_for_more
    }

    /// What is left of it.
    pub(super) const fn left(&self) -> u32 {
        self.left
    }

    /// Whether something is missing because the work was too much.
    pub(super) const fn is_spent(&self) -> bool {
        self.asked_for_more
    }
}

/// The last moment at which an occurrence may begin, on a wall that is so many seconds ahead of UTC.
pub(super) fn last_on_wall(rule: &Rule, ahead: i32) -> DateTime {
    match &rule.end {
        End::Never | End::After(_) => DateTime::MAX,
        End::Last(Moment::Day(date)) => date.at(23, 59, 59, 0),
        End::Last(Moment::Floating(at) | Moment::In(at, _)) => *at,
        End::Last(Moment::Utc(at)) => at.saturating_add(SignedDuration::from_secs(i64::from(ahead))),
    }
}

/// Every start on the wall within `range`, in order; `first` is always one of them (if in range) and counts as the first. A last
/// moment ([`End::Last`]) is the caller's to keep: it knows the zone.
pub(super) fn starts(
    rule: &Rule,
    first: DateTime,
    range: RangeInclusive<DateTime>,
    budget: &mut Budget,
) -> Vec<DateTime> {
    let mut found: Vec<DateTime> = range.contains(&first).then_some(first).into_iter().collect();
    let mut left = match rule.end {
        End::After(count) => count.saturating_sub(1),
        End::Never | End::Last(_) => u32::MAX,
    };
    // Who counts must begin at the beginning; others begin shortly before the range.
    let mut turn = match rule.end {
        End::After(_) => 0,
        End::Never | End::Last(_) => turns_before(rule, first, *range.start()),
    };
    while left > 0 && budget.take() {
        let Some(base) = period(rule, first, turn) else { break };
        if base > *range.end() {
            break;
        }
        let starts = match skip(rule, first, base) {
            Some(next) => {
                turn = next.max(turn + 1);
                continue;
            }
            None => within(rule, first, base, budget),
        };
        for start in starts.into_iter().filter(|start| *start > first) {
            if start > *range.end() || left == 0 {
                return found;
            }
            left -= 1;
            if start >= *range.start() {
                found.push(start);
            }
        }
        turn += 1;
    }
    found
}

/// The beginning of the rule's period number `turn`, the one of `first` being 0; `None` beyond the calendar.
fn period(rule: &Rule, first: DateTime, turn: i64) -> Option<DateTime> {
    let steps = turn.checked_mul(i64::from(rule.interval.max(1)))?;
    let day = |date: Date| date.at(0, 0, 0, 0);
    let sub_daily = |unit: i64, base: DateTime| {
        base.checked_add(SignedDuration::from_secs(steps.checked_mul(unit)?))
            .ok()
    };
    let (date, time) = (first.date(), first.time());
    match rule.every {
        Every::Year => {
            let year = i64::from(date.year()).checked_add(steps)?;
            Date::new(i16::try_from(year).ok()?, 1, 1).ok().map(day)
        }
        Every::Month => {
            let span = 0.days().try_months(steps).ok()?;
            date.first_of_month().checked_add(span).ok().map(day)
        }
        Every::Week => sub_daily(7 * 86_400, day(week_of(date, rule.week_start))),
        Every::Day => sub_daily(86_400, day(date)),
        Every::Hour => sub_daily(3_600, date.at(time.hour(), 0, 0, 0)),
        Every::Minute => sub_daily(60, date.at(time.hour(), time.minute(), 0, 0)),
        Every::Second => sub_daily(1, first),
    }
}

/// Periods that certainly lie before a moment.
fn turns_before(rule: &Rule, first: DateTime, at: DateTime) -> i64 {
    let seconds = at.duration_since(first).as_secs();
    let units = match rule.every {
        Every::Year => i64::from(at.year()) - i64::from(first.year()),
        Every::Month => {
            (i64::from(at.year()) - i64::from(first.year())) * 12 + i64::from(at.month()) - i64::from(first.month())
        }
        Every::Week => seconds / (7 * 86_400),
        Every::Day => seconds / 86_400,
        Every::Hour => seconds / 3_600,
        Every::Minute => seconds / 60,
        Every::Second => seconds,
    };
    (units / i64::from(rule.interval.max(1)) - 1).max(0)
}

/// Where nothing of this whole day can match what repeats by the hour, minute or second: the first period after it.
fn skip(rule: &Rule, first: DateTime, base: DateTime) -> Option<i64> {
    let unit = match rule.every {
        Every::Year | Every::Month | Every::Week | Every::Day => return None,
        Every::Hour => 3_600,
        Every::Minute => 60,
        Every::Second => 1,
    };
    let hour_is_named = rule.by_hour.is_empty() || rule.by_hour.contains(&base.hour());
    let next = if !day_matches(rule, base.date()) {
        base.date().tomorrow().ok()?.at(0, 0, 0, 0)
    } else if !hour_is_named {
        base.date()
            .at(base.hour(), 0, 0, 0)
            .checked_add(SignedDuration::from_hours(1))
            .ok()?
    } else {
        return None;
    };
    let step = unit * i64::from(rule.interval.max(1));
    let seconds = next.duration_since(period(rule, first, 0)?).as_secs();
    Some(seconds.div_euclid(step) + i64::from(seconds.rem_euclid(step) != 0))
}

/// Every start of one period, in order, by position where the rule asks for it.
fn within(rule: &Rule, first: DateTime, base: DateTime, budget: &mut Budget) -> Vec<DateTime> {
    let times = times(rule, first.time(), base.time());
    let mut starts = Vec::new();
    for date in dates(rule, first.date(), base.date(), budget) {
        for time in &times {
            if !budget.take() {
                return starts;
            }
            starts.push(date.to_datetime(*time));
        }
    }
    if rule.by_position.is_empty() {
        return starts;
    }
    let mut chosen: Vec<DateTime> = rule
        .by_position
        .iter()
        .filter_map(|position| {
            let at = if *position < 0 {
                starts.len().checked_sub(position.unsigned_abs() as usize)?
            } else {
                (position.unsigned_abs() as usize).checked_sub(1)?
            };
            starts.get(at).copied()
        })
        .collect();
    chosen.sort_unstable();
    chosen.dedup();
    chosen
}

/// The times of day of a period that begins at `base`; what the rule does not say is as in the first start.
fn times(rule: &Rule, first: Time, base: Time) -> Vec<Time> {
    // A unit that the rule repeats by, or a smaller one that it names, is expanded; a larger one was looked at before.
    let named = |units: &Vec<i8>, own: i8, base: i8, repeats_within: bool| {
        let mut units = match (units.is_empty(), repeats_within) {
            (true, true) => vec![base],
            (true, false) => vec![own],
            (false, true) => units.iter().copied().filter(|unit| *unit == base).collect(),
            (false, false) => units.clone(),
        };
        units.sort_unstable();
        units.dedup();
        units
    };
    let hours = named(&rule.by_hour, first.hour(), base.hour(), rule.every <= Every::Hour);
    let minutes = named(
        &rule.by_minute,
        first.minute(),
        base.minute(),
        rule.every <= Every::Minute,
    );
    let seconds = named(
        &rule.by_second,
        first.second(),
        base.second(),
        rule.every <= Every::Second,
    );
    let mut times = Vec::new();
    for hour in &hours {
        for minute in &minutes {
            times.extend(
                seconds
                    .iter()
                    .filter_map(|second| Time::new(*hour, *minute, *second, 0).ok()),
            );
        }
    }
    times
}

/// The dates of a period that begins at `base`.
fn dates(rule: &Rule, first: Date, base: Date, budget: &mut Budget) -> Vec<Date> {
    let no_day = rule.by_day.is_empty() && rule.by_month_day.is_empty() && rule.by_year_day.is_empty();
    let candidates: Vec<Date> = match rule.every {
        Every::Second | Every::Minute | Every::Hour | Every::Day => vec![base],
        Every::Week => base.series(1.day()).take(7).collect(),
        Every::Month => days_of_month(base),
        Every::Year => (1..=12)
            .filter(|month| rule.by_month.is_empty() || rule.by_month.contains(month))
            .filter(|month| !(no_day && rule.by_week.is_empty() && rule.by_month.is_empty()) || *month == first.month())
            .filter_map(|month| Date::new(base.year(), month, 1).ok())
            .flat_map(days_of_month)
            .collect(),
    };
    let of_first = |date: &Date| match rule.every {
        Every::Second | Every::Minute | Every::Hour | Every::Day => true,
        Every::Week => date.weekday() == first.weekday(),
        Every::Month => date.day() == first.day(),
        Every::Year if rule.by_week.is_empty() => date.day() == first.day(),
        Every::Year => date.weekday() == first.weekday(),
    };
    candidates
        .into_iter()
        .filter(|date| budget.take() && (!no_day || of_first(date)) && day_matches(rule, *date))
        .collect()
}

fn days_of_month(first: Date) -> Vec<Date> {
    first
        .series(1.day())
        .take(first.days_in_month().unsigned_abs().into())
        .collect()
}

/// Whether a day is one that every part of the rule allows.
fn day_matches(rule: &Rule, date: Date) -> bool {
    let from_end = |position: i16, length: i16| position - length - 1;
    let month = rule.by_month.is_empty() || rule.by_month.contains(&date.month());
    let month_day = rule.by_month_day.is_empty()
        || rule.by_month_day.contains(&date.day())
        || rule.by_month_day.contains(&(date.day() - date.days_in_month() - 1));
    let year_day = rule.by_year_day.is_empty()
        || rule.by_year_day.contains(&date.day_of_year())
        || rule
            .by_year_day
            .contains(&from_end(date.day_of_year(), date.days_in_year()));
    let week = rule.by_week.is_empty() || {
        let (number, count) = week_number(date, rule.week_start);
        rule.by_week.contains(&number) || rule.by_week.contains(&(number - count - 1))
    };
    month && month_day && year_day && week && weekday_matches(rule, date)
}

fn weekday_matches(rule: &Rule, date: Date) -> bool {
    if rule.by_day.is_empty() {
        return true;
    }
    // "The second Monday" is one of the month where the rule is about months, else one of the year.
    let in_month = rule.every == Every::Month || !rule.by_month.is_empty();
    let (day, length) = if in_month {
        (i16::from(date.day()), i16::from(date.days_in_month()))
    } else {
        (date.day_of_year(), date.days_in_year())
    };
    let counts = matches!(rule.every, Every::Month | Every::Year) && rule.by_week.is_empty();
    rule.by_day.iter().any(|named| {
        named.day == date.weekday()
            && match named.which {
                Some(which) if counts => which == (day - 1) / 7 + 1 || which == -((length - day) / 7 + 1),
                Some(_) | None => true,
            }
    })
}

/// The first day of a day's week.
fn week_of(date: Date, start: Weekday) -> Date {
    let days = date.weekday().since(start);
    date.saturating_sub(i64::from(days).days())
}

/// The number of a day's week in its year, and how many that year has: week 1 is the first with four days of the year in it.
fn week_number(date: Date, start: Weekday) -> (i8, i8) {
    // The year of a week is that of its fourth day.
    let fourth = week_of(date, start).saturating_add(3.days());
    let number = (fourth.day_of_year() - 1) / 7 + 1;
    let last = (fourth.days_in_year() - fourth.day_of_year()) / 7;
    (number as i8, (number + last) as i8)
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;

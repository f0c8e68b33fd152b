//! Reads an iCalendar text (RFC 5545), of a file or a feed, into the values that `sela-core` decides from. The grammar is the
//! library's; which of its properties decide when an event is, and what cannot be understood, is here. Titles, places and people
//! are never taken over. Fetching is the agent's.

use calcard::common::PartialDateTime;
use calcard::icalendar::{
    ICalendar, ICalendarComponent, ICalendarComponentType as Kind, ICalendarDuration, ICalendarEntry,
    ICalendarFrequency, ICalendarMethod, ICalendarParameterName as Parameter, ICalendarPeriod,
    ICalendarProperty as Property, ICalendarRecurrenceRule, ICalendarStatus, ICalendarTransparency,
    ICalendarValue as Value, ICalendarWeekday,
};
use calcard::{Entry, Parser};
use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time, Weekday};
use sela_core::schedule::calendar::{
    Calendar, End, Event, Every, InsteadOf, Length, Moment, NamedDay, Observance, Rule,
};

/// Larger texts are no calendar of a person's.
const MOST_BYTES: usize = 8 << 20;
/// And more events are none either.
const MOST_EVENTS: usize = 20_000;
/// Values of one property: dates of a series, or dates left out of it.
const MOST_VALUES: usize = 10_000;

/// Why a text is no calendar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalendarError {
    /// A page for people came instead.
    #[error(
        "this is a web page and no calendar, as for logging in: give the address of the calendar itself (its \"secret\" or \"iCal\" address)"
    )]
    WebPage,
    /// Something else.
    #[error("this is no calendar: an iCalendar text begins with BEGIN:VCALENDAR")]
    NotACalendar,
    /// The end is missing.
    #[error("this calendar is cut off: END:VCALENDAR is missing at its end")]
    CutOff,
    /// Too much.
    #[error("this calendar is too large: {what}")]
    TooLarge {
        /// What there is too much of.
        what: String,
    },
}

/// Reads a text. An event that cannot be understood is told in [`Calendar::unread`] and does not spoil the others.
///
/// # Errors
/// Where it is no calendar, not all of one, or too large.
pub fn read(text: &str) -> Result<Calendar, CalendarError> {
    if text.len() > MOST_BYTES {
        return Err(CalendarError::TooLarge {
            what: format!("{} MiB; {} MiB are read at most", text.len() >> 20, MOST_BYTES >> 20),
        });
    }
    let text = text.trim_start_matches('\u{feff}').trim();
    let begins = |word: &str| {
        text.get(..word.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(word))
    };
    if text.starts_with('<') {
        return Err(CalendarError::WebPage);
    }
    if !begins("BEGIN:VCALENDAR") {
        return Err(CalendarError::NotACalendar);
    }
    let last = text.lines().next_back().unwrap_or_default().trim();
    if !last.eq_ignore_ascii_case("END:VCALENDAR") {
        return Err(CalendarError::CutOff);
    }
    let mut calendar = Calendar::default();
    let mut parser = Parser::new(text);
    loop {
        match parser.entry() {
            Entry::ICalendar(part) => take(&part, &mut calendar),
            Entry::Eof => break,
            Entry::VCard(_)
            | Entry::InvalidLine(_)
            | Entry::UnexpectedComponentEnd { .. }
            | Entry::UnterminatedComponent(_)
            | Entry::TooManyComponents
            | _ => return Err(CalendarError::NotACalendar),
        }
        if calendar.events.len() > MOST_EVENTS {
            return Err(CalendarError::TooLarge {
                what: format!("more than {MOST_EVENTS} events"),
            });
        }
    }
    Ok(calendar)
}

fn take(part: &ICalendar, calendar: &mut Calendar) {
    let children = |component: &ICalendarComponent| {
        let ids = component.component_ids.clone();
        ids.into_iter().filter_map(|id| part.component_by_id(id))
    };
    let Some(root) = part.components.first() else { return };
    let zone = first_text(root, &Property::Other("X-WR-TIMEZONE".into()));
    calendar.zone = calendar.zone.take().or(zone);
    let all_cancelled = root
        .property(&Property::Method)
        .is_some_and(|method| matches!(method.values.first(), Some(Value::Method(ICalendarMethod::Cancel))));
    for component in children(root) {
        match &component.component_type {
            Kind::VEvent => match event(component) {
                Ok(event) => calendar.events.push(Event {
                    cancelled: event.cancelled || all_cancelled,
                    ..event
                }),
                Err(why) => calendar.unread.push(why),
            },
            Kind::VTimezone => {
                let observances = children(component).filter_map(observance).collect::<Vec<_>>();
                if let Some(name) = first_text(component, &Property::Tzid)
                    && !observances.is_empty()
                {
                    calendar.zones.insert(name, observances);
                }
            }
            Kind::Other(_)
            | Kind::VCalendar
            | Kind::VTodo
            | Kind::VJournal
            | Kind::VFreebusy
            | Kind::VAlarm
            | Kind::Standard
            | Kind::Daylight
            | Kind::VAvailability
            | Kind::Available
            | Kind::Participant
            | Kind::VLocation
            | Kind::VResource
            | Kind::VStatus => {}
        }
    }
}

fn event(component: &ICalendarComponent) -> Result<Event, String> {
    let start = component
        .property(&Property::Dtstart)
        .ok_or("an event does not say when it begins (DTSTART)")?;
    let start = moments(start)?
        .pop()
        .ok_or("an event does not say when it begins (DTSTART)")?;
    let on = match &start {
        Moment::Day(date) => *date,
        Moment::Floating(at) | Moment::Utc(at) | Moment::In(at, _) => at.date(),
    };
    let of = |what: &str| format!("the event that begins on {on}: {what}");
    if component.has_property(&Property::Exrule) {
        return Err(of("EXRULE was taken out of the standard and is not followed"));
    }
    let all = |property: Property| -> Result<Vec<Moment>, String> {
        let entries: Result<Vec<_>, _> = component.properties(&property).map(moments).collect();
        bounded(entries.map_err(|why| of(&why))?.into_iter().flatten().collect()).map_err(|why| of(&why))
    };
    let rules: Result<Vec<Rule>, String> = component.properties(&Property::Rrule).map(rule).collect();
    let text = |name: &str| first_text(component, &Property::Other(name.into()));
    Ok(Event {
        uid: component.uid().unwrap_or_default().to_owned(),
        instead_of: instead_of(component).map_err(|why| of(&why))?,
        length: length(component).map_err(|why| of(&why))?,
        rules: rules.map_err(|why| of(&why))?,
        dates: dates(component).map_err(|why| of(&why))?,
        except: all(Property::Exdate)?,
        cancelled: component.status() == Some(&ICalendarStatus::Cancelled),
        free: component.transparency() == Some(&ICalendarTransparency::Transparent)
            || text("X-MICROSOFT-CDO-BUSYSTATUS").is_some_and(|busy| busy.eq_ignore_ascii_case("FREE")),
        sequence: component
            .property(&Property::Sequence)
            .and_then(|sequence| sequence.values.first()?.as_integer())
            .unwrap_or(0),
        start,
    })
}

fn bounded<T>(values: Vec<T>) -> Result<Vec<T>, String> {
    if values.len() > MOST_VALUES {
        return Err(format!(
            "it lists {} dates; {MOST_VALUES} are read at most",
            values.len()
        ));
    }
    Ok(values)
}

fn instead_of(component: &ICalendarComponent) -> Result<Option<InsteadOf>, String> {
    let Some(entry) = component.property(&Property::RecurrenceId) else {
        return Ok(None);
    };
    let start = moments(entry)?.pop().ok_or("its RECURRENCE-ID says nothing")?;
    // The standard's only range left is THISANDFUTURE, which the library gives as true; THISANDPRIOR was taken out.
    let and_later = entry.parameter(&Parameter::Range).is_some_and(|range| {
        range.as_bool() == Some(true)
            || range
                .as_text()
                .is_some_and(|text| text.eq_ignore_ascii_case("THISANDFUTURE"))
    });
    Ok(Some(InsteadOf { start, and_later }))
}

fn length(component: &ICalendarComponent) -> Result<Length, String> {
    if let Some(end) = component.property(&Property::Dtend) {
        return Ok(Length::Until(moments(end)?.pop().ok_or("its DTEND says nothing")?));
    }
    match component
        .property(&Property::Duration)
        .map(|entry| entry.values.first())
    {
        None => Ok(Length::Unsaid),
        Some(Some(Value::Duration(duration))) => nominal(duration),
        Some(_) => Err("its DURATION is none".into()),
    }
}

fn nominal(duration: &ICalendarDuration) -> Result<Length, String> {
    let whole = |value: u32| i64::from(value);
    let sign = if duration.neg { -1 } else { 1 };
    let days = sign * (whole(duration.weeks) * 7 + whole(duration.days));
    let seconds = sign * (whole(duration.hours) * 3_600 + whole(duration.minutes) * 60 + whole(duration.seconds));
    Ok(Length::Nominal {
        days: i32::try_from(days).map_err(|_| "its DURATION is longer than time")?,
        time: SignedDuration::from_secs(seconds),
    })
}

fn dates(component: &ICalendarComponent) -> Result<Vec<(Moment, Option<Length>)>, String> {
    let mut dates = Vec::new();
    for entry in component.properties(&Property::Rdate) {
        for value in &entry.values {
            if let Value::Period(period) = value {
                dates.push(match period {
                    ICalendarPeriod::Range { start, end } => {
                        (moment(start, entry)?, Some(Length::Until(moment(end, entry)?)))
                    }
                    ICalendarPeriod::Duration { start, duration } => (moment(start, entry)?, Some(nominal(duration)?)),
                });
            } else {
                dates.push((value_moment(value, entry)?, None));
            }
        }
    }
    bounded(dates)
}

fn observance(component: &ICalendarComponent) -> Option<Observance> {
    let offset = |property| {
        let Value::PartialDateTime(at) = component.property(property)?.values.first()? else {
            return None;
        };
        let seconds = i32::from(at.tz_hour?) * 3_600 + i32::from(at.tz_minute.unwrap_or(0)) * 60;
        Some(if at.tz_minus { -seconds } else { seconds })
    };
    let start = moments(component.property(&Property::Dtstart)?).ok()?.pop()?;
    let dates = component
        .properties(&Property::Rdate)
        .filter_map(|entry| moments(entry).ok());
    Some(Observance {
        start: wall(&start),
        ahead_before: offset(&Property::Tzoffsetfrom)?,
        ahead: offset(&Property::Tzoffsetto)?,
        rules: component
            .properties(&Property::Rrule)
            .filter_map(|entry| rule(entry).ok())
            .collect(),
        dates: dates.flatten().map(|at| wall(&at)).collect(),
    })
}

fn wall(moment: &Moment) -> DateTime {
    match moment {
        Moment::Day(date) => date.to_datetime(Time::MIN),
        Moment::Floating(at) | Moment::Utc(at) | Moment::In(at, _) => *at,
    }
}

/// The moments of a property, on the clock that its parameters name.
fn moments(entry: &ICalendarEntry) -> Result<Vec<Moment>, String> {
    entry.values.iter().map(|value| value_moment(value, entry)).collect()
}

fn value_moment(value: &Value, entry: &ICalendarEntry) -> Result<Moment, String> {
    match value.as_partial_date_time() {
        Some(at) => moment(at, entry),
        None => Err("a date or time in it cannot be read".into()),
    }
}

fn moment(at: &PartialDateTime, entry: &ICalendarEntry) -> Result<Moment, String> {
    let zone = entry.parameter(&Parameter::Tzid).and_then(|zone| zone.as_text());
    let unreadable = || "a date or time in it does not exist".to_owned();
    match on_wall(at).ok_or_else(unreadable)? {
        (date, None) => Ok(Moment::Day(date)),
        (date, Some(time)) => {
            let wall = date.to_datetime(time);
            Ok(match (at.tz_hour.is_some(), zone) {
                (true, _) => Moment::Utc(wall),
                (false, Some(zone)) => Moment::In(wall, zone.to_owned()),
                (false, None) => Moment::Floating(wall),
            })
        }
    }
}

fn on_wall(at: &PartialDateTime) -> Option<(Date, Option<Time>)> {
    let small = |value: u8| i8::try_from(value).ok();
    let date = Date::new(i16::try_from(at.year?).ok()?, small(at.month?)?, small(at.day?)?).ok()?;
    let Some(hour) = at.hour else {
        return Some((date, None));
    };
    // A second that a leap adds is the last of its minute, as everywhere else (RFC 5545, 3.3.12).
    let (minute, second) = (at.minute.unwrap_or(0), at.second.unwrap_or(0).min(59));
    let time = Time::new(small(hour)?, small(minute)?, small(second)?, 0).ok()?;
    Some((date, Some(time)))
}

fn rule(entry: &ICalendarEntry) -> Result<Rule, String> {
    let Some(Value::RecurrenceRule(rule)) = entry.values.first() else {
        return Err("its rule (RRULE) cannot be read".into());
    };
    let rule: &ICalendarRecurrenceRule = rule;
    if rule.rscale.is_some() || rule.bymonth.iter().any(calcard::icalendar::ICalendarMonth::is_leap) {
        return Err("it repeats by another calendar than the Gregorian (RSCALE)".into());
    }
    let small = |values: &[u8], most: u8, name: &str| -> Result<Vec<i8>, String> {
        let fits = |value: &u8| {
            (*value <= most)
                .then_some(*value)
                .and_then(|value| i8::try_from(value).ok())
        };
        values
            .iter()
            .map(|value| fits(value).ok_or_else(|| format!("its rule has {name}={value}")))
            .collect()
    };
    let months: Vec<u8> = rule.bymonth.iter().map(|month| month.month()).collect();
    let end = match (&rule.until, rule.count) {
        (Some(until), _) => {
            let (date, time) = on_wall(until).ok_or("its last moment (UNTIL) does not exist")?;
            End::Last(match time {
                None => Moment::Day(date),
                Some(time) if until.tz_hour.is_some() => Moment::Utc(date.to_datetime(time)),
                Some(time) => Moment::Floating(date.to_datetime(time)),
            })
        }
        (None, Some(count)) => End::After(count),
        (None, None) => End::Never,
    };
    Ok(Rule {
        every: match rule.freq {
            ICalendarFrequency::Yearly => Every::Year,
            ICalendarFrequency::Monthly => Every::Month,
            ICalendarFrequency::Weekly => Every::Week,
            ICalendarFrequency::Daily => Every::Day,
            ICalendarFrequency::Hourly => Every::Hour,
            ICalendarFrequency::Minutely => Every::Minute,
            ICalendarFrequency::Secondly => Every::Second,
        },
        interval: u32::from(rule.interval.unwrap_or(1)),
        end,
        by_second: small(&rule.bysecond, 60, "BYSECOND")?,
        by_minute: small(&rule.byminute, 59, "BYMINUTE")?,
        by_hour: small(&rule.byhour, 23, "BYHOUR")?,
        by_day: rule
            .byday
            .iter()
            .map(|day| NamedDay {
                which: day.ordwk.filter(|which| *which != 0),
                day: weekday(day.weekday),
            })
            .collect(),
        by_month_day: rule.bymonthday.clone(),
        by_year_day: rule.byyearday.clone(),
        by_week: rule.byweekno.clone(),
        by_month: small(&months, 12, "BYMONTH")?,
        by_position: rule.bysetpos.clone(),
        week_start: rule.wkst.map_or(Weekday::Monday, weekday),
    })
}

const fn weekday(day: ICalendarWeekday) -> Weekday {
    match day {
        ICalendarWeekday::Sunday => Weekday::Sunday,
        ICalendarWeekday::Monday => Weekday::Monday,
        ICalendarWeekday::Tuesday => Weekday::Tuesday,
        ICalendarWeekday::Wednesday => Weekday::Wednesday,
        ICalendarWeekday::Thursday => Weekday::Thursday,
        ICalendarWeekday::Friday => Weekday::Friday,
        ICalendarWeekday::Saturday => Weekday::Saturday,
    }
}

fn first_text(component: &ICalendarComponent, property: &Property) -> Option<String> {
    let text = component.property(property)?.values.first()?.as_text()?;
    Some(text.trim_matches('"').to_owned())
}

//! Awkward calendars, read from the texts in `calendars/` and asked when they are: what programs really write, what servers really
//! send, and what somebody hostile would. And rules against what another implementation of the standard says of them.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use sela_core::schedule::calendar::Feed;
use sela_core::schedule::{CalendarUse, Feeds, Meaning, Outlook, Plan, Schedule, Slot, Week, Zones};
use sela_protocol::units::UtcMs;
use sela_sensors::calendar::{CalendarError, read};

fn text(file: &str) -> String {
    let path = format!("{}/tests/calendars/{file}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).expect(&path)
}

fn utc(wall: &str) -> UtcMs {
    let wall: DateTime = wall.parse().expect(wall);
    let at = TimeZone::UTC.to_timestamp(wall).expect("a moment");
    UtcMs(at.as_millisecond())
}

/// What a calendar says for an owner in Berlin.
fn outlook(text: &str, meaning: Meaning, from: &str, to: &str) -> Outlook {
    let mut feed = Feed::default();
    feed.heard(read(text).map_err(|error| error.to_string()), UtcMs(0));
    let plan = Plan {
        zone: "Europe/Berlin".into(),
        week: match meaning {
            Meaning::Opens => Week::Windows(Vec::new()),
            Meaning::Closes => Week::Always,
        },
        exceptions: Vec::new(),
        calendars: vec![CalendarUse {
            name: "c".into(),
            meaning,
        }],
    };
    let schedule = Schedule::of(plan, &Zones::bundled()).expect("a plan");
    let range = Slot::between(utc(from), utc(to)).expect("a range");
    schedule.outlook(&Feeds::from([("c".into(), feed)]), range)
}

/// The slots of March 2026, in UTC: `02T08:00/02T09:00`.
fn of_march(file: &str) -> (Vec<String>, Vec<String>) {
    let outlook = outlook(&text(file), Meaning::Opens, "2026-03-01T00:00", "2026-04-01T00:00");
    let shown = |at: UtcMs| {
        let at = jiff::Timestamp::from_millisecond(at.0).expect("a moment");
        TimeZone::UTC.to_datetime(at).strftime("%dT%H:%M").to_string()
    };
    let slots = outlook.open().as_slice().iter();
    let slots = slots
        .map(|slot| format!("{}/{}", shown(slot.from), shown(slot.to)))
        .collect();
    (slots, outlook.notes().to_vec())
}

#[test]
fn awkward_calendars_are_read_as_they_are_meant() {
    for (file, slots) in [
        ("folded.ics", &["02T08:00/02T09:00", "03T08:00/03T09:00"][..]),
        (
            "outlook.ics",
            &[
                "02T08:00/02T09:00",
                "05T08:00/05T09:00",
                "06T09:00/06T10:00",
                "09T23:00/11T23:00",
                "29T10:00/29T11:00",
            ],
        ),
        (
            "changed.ics",
            &["02T08:00/02T09:00", "12T13:00/12T14:00", "18T08:00/18T09:00"],
        ),
        (
            "this_and_later.ics",
            &[
                "02T17:00/02T19:00",
                "03T17:00/03T19:00",
                "04T19:00/04T19:30",
                "05T19:00/05T19:30",
                "06T19:00/06T19:30",
            ],
        ),
        (
            "periods.ics",
            &[
                "02T09:00/03T10:00",
                "05T01:00/05T04:00",
                "06T01:00/06T01:30",
                "09T09:00/10T10:00",
            ],
        ),
        ("whole_days.ics", &["27T23:00/29T22:00", "31T22:00/01T00:00"]),
        ("called_off.ics", &[]),
        ("two_calendars.ics", &["02T09:00/02T10:00", "03T09:00/03T10:00"]),
    ] {
        let (open, notes) = of_march(file);
        assert_eq!(open, slots, "{file}: {notes:?}");
        assert!(notes.is_empty(), "{file}: {notes:?}");
    }
}

#[test]
fn a_broken_event_is_told_and_does_not_spoil_the_others() {
    let (open, notes) = of_march("broken_lines.ics");
    assert_eq!(open, ["02T09:00/02T10:00", "07T09:00/07T10:00"]);
    assert_eq!(notes.len(), 5, "{notes:?}");
    for (note, words) in notes.iter().zip([
        "does not exist",
        "does not say when it begins",
        "rule (RRULE) cannot be read",
        "BYHOUR=99",
        "EXRULE",
    ]) {
        assert!(note.contains(words), "{note}");
    }
    let (open, notes) = of_march("backwards.ics");
    assert!(open.is_empty(), "{open:?}");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes.iter().all(|note| note.contains("ends before it begins")),
        "{notes:?}"
    );
}

#[test]
fn an_endless_calendar_is_looked_at_for_a_bounded_time_and_spoils_no_other_event() {
    let (open, notes) = of_march("endless.ics");
    assert!(notes[0].contains("repeats so often"), "{notes:?}");
    assert!(open.iter().any(|slot| slot == "02T09:00/02T10:00"), "{}", open.len());
}

#[test]
fn depth_without_end_is_borne() {
    let deep = 50_000;
    let (begins, ends) = ("BEGIN:VEVENT\r\n".repeat(deep), "END:VEVENT\r\n".repeat(deep));
    let calendar = read(&format!("BEGIN:VCALENDAR\r\n{begins}{ends}END:VCALENDAR\r\n")).expect("a calendar");
    assert_eq!((calendar.events.len(), calendar.unread.len()), (0, 1));
}

#[test]
fn what_is_no_calendar_says_what_it_is_instead() {
    for (text, expected) in [
        (text("login_page.html"), CalendarError::WebPage),
        (text("cut_off.ics"), CalendarError::CutOff),
        (String::new(), CalendarError::NotACalendar),
        ("404 not found".into(), CalendarError::NotACalendar),
        ("{\"error\":\"unauthorized\"}".into(), CalendarError::NotACalendar),
        ("BEGIN:VCARD\r\nEND:VCARD".into(), CalendarError::NotACalendar),
    ] {
        assert_eq!(read(&text), Err(expected), "{text:?}");
    }
    let many = "BEGIN:VEVENT\r\nUID:1\r\nDTSTART:20260302T090000Z\r\nEND:VEVENT\r\n".repeat(20_001);
    let many = format!("BEGIN:VCALENDAR\r\n{many}END:VCALENDAR\r\n");
    assert!(matches!(read(&many), Err(CalendarError::TooLarge { .. })));
    let long = format!("BEGIN:VCALENDAR\r\nX:{}\r\nEND:VCALENDAR\r\n", "y".repeat(9 << 20));
    assert!(matches!(read(&long), Err(CalendarError::TooLarge { .. })));
}

#[test]
fn a_busy_time_in_a_zone_that_nobody_knows_closes_every_hour_it_could_mean() {
    let outlook = outlook(
        &text("unknown_zone.ics"),
        Meaning::Closes,
        "2026-03-09T00:00",
        "2026-03-12T00:00",
    );
    assert!(!outlook.is_open(utc("2026-03-10T00:00")) && !outlook.is_open(utc("2026-03-11T00:00")));
    assert!(
        outlook.unsure()[0].contains("Middle-earth/Shire"),
        "{:?}",
        outlook.unsure()
    );
}

#[test]
fn what_is_exported_is_read_again_as_it_was() {
    let nights = outlook(
        &text("changed.ics"),
        Meaning::Closes,
        "2026-03-01T00:00",
        "2026-04-01T00:00",
    );
    let exported = sela_core::schedule::export(nights.open(), "Sela may share the card", UtcMs(0));
    let again = outlook(&exported, Meaning::Opens, "2026-03-01T00:00", "2026-04-01T00:00");
    assert_eq!(again.open(), nights.open());
}

#[test]
fn rules_mean_what_another_implementation_says_they_mean() {
    let mut compared = 0;
    for line in text("rules.txt").lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [first, rule, from, starts] = parts[..] else {
            panic!("{line}")
        };
        let ics = format!(
            "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART:{first}Z\r\nDURATION:PT1S\r\nRRULE:{rule}\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
        );
        let expected: Vec<UtcMs> = starts.split(' ').map(utc).collect();
        let last = expected.last().expect("starts").0 + 1_000;
        let to = jiff::Timestamp::from_millisecond(last).expect("a moment");
        let to = TimeZone::UTC.to_datetime(to).to_string();
        let outlook = outlook(&ics, Meaning::Opens, from, &to);
        let found: Vec<UtcMs> = outlook.open().as_slice().iter().map(|slot| slot.from).collect();
        assert_eq!(found, expected, "{line}: {:?}", outlook.notes());
        compared += 1;
    }
    assert!(compared > 100, "{compared}");
}

//! The tray's menu as panels read and click it: `com.canonical.dbusmenu`. Its rows never change their number or order, so the
//! layout has one revision, and only what a row says is told anew.

use super::tray::{Shared, Showing};
use crate::controller::TrayView;
use crate::menu::{Item, Row, choice_of};
use std::collections::HashMap;
use zbus::fdo;
use zbus::object_server::SignalEmitter;
use zbus::wire::{OwnedVariant, Variant};

/// The menu itself; its rows are numbered from 1.
const ROOT: i32 = 0;
const REVISION: u32 = 1;

type Properties = HashMap<&'static str, Variant<'static>>;
/// A row, what it is, and the rows under it.
type Layout = (i32, Properties, Vec<Variant<'static>>);

pub(super) struct Menu {
    shared: Shared,
}

impl Menu {
    pub(super) const fn new(shared: Shared) -> Self {
        Self { shared }
    }

    /// The rows that are no longer as they were. One with a check always counts: some panels toggle it by themselves.
    pub(super) fn changed(showing: &Showing, before: &TrayView) -> Vec<(i32, Properties)> {
        let rows = showing.labels.rows(&showing.view);
        let before = showing.labels.rows(before);
        let numbered = (1..).zip(rows.iter().zip(&before));
        numbered
            .filter(|(_, (row, before))| row != before || matches!(row, Row::Item(Item { checked: Some(_), .. })))
            .map(|(number, (row, _))| (number, of_row(row)))
            .collect()
    }

    fn rows(&self) -> Vec<(i32, Row)> {
        let rows = self.shared.look(|showing| showing.labels.rows(&showing.view));
        (1..).zip(rows).collect()
    }

    fn properties(&self, id: i32) -> Option<Properties> {
        if id == ROOT {
            return Some(of_root());
        }
        let rows = self.rows();
        rows.iter()
            .find(|(number, _)| *number == id)
            .map(|(_, row)| of_row(row))
    }

    fn click(&self, id: i32, what: &str) -> bool {
        let rows = self.rows();
        let Some((_, row)) = rows.iter().find(|(number, _)| *number == id) else {
            return id == ROOT;
        };
        if let Row::Item(item) = row
            && what == "clicked"
            && item.enabled
            && let Some(choice) = choice_of(item.id)
        {
            self.shared.chose(choice);
        }
        true
    }
}

fn of_root() -> Properties {
    HashMap::from([("children-display", Variant::from("submenu"))])
}

fn of_row(row: &Row) -> Properties {
    let Row::Item(item) = row else {
        return HashMap::from([("type", Variant::from("separator"))]);
    };
    let mut properties = HashMap::from([
        // One underline marks the key that chooses the row; a doubled one is one.
        ("label", Variant::from(item.label.replace('_', "__"))),
        ("enabled", Variant::from(item.enabled)),
    ]);
    if let Some(checked) = item.checked {
        properties.insert("toggle-type", Variant::from("checkmark"));
        properties.insert("toggle-state", Variant::from(i32::from(checked)));
    }
    properties
}

/// Only what was asked for by name; everything where nothing was.
fn only(mut properties: Properties, wanted: &[String]) -> Properties {
    if !wanted.is_empty() {
        properties.retain(|name, _| wanted.iter().any(|wanted| wanted == name));
    }
    properties
}

#[zbus::interface(name = "com.canonical.dbusmenu")]
impl Menu {
    #[zbus(property(emits_changed_signal = "const"))]
    fn version(&self) -> u32 {
        3
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn text_direction(&self) -> &'static str {
        "ltr"
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn status(&self) -> &'static str {
        "normal"
    }

    #[zbus(property(emits_changed_signal = "const"))]
    fn icon_theme_path(&self) -> Vec<String> {
        Vec::new()
    }

    /// `recursion_depth` below 0 is all the way down; this menu is one row deep.
    fn get_layout(
        &self,
        parent_id: i32,
        recursion_depth: i32,
        property_names: Vec<String>,
    ) -> fdo::Result<(u32, Layout)> {
        let properties = self.properties(parent_id).ok_or_else(no_row)?;
        let children = if parent_id == ROOT && recursion_depth != 0 {
            self.rows()
        } else {
            Vec::new()
        };
        let children = children.into_iter().map(|(number, row)| {
            let under: Vec<Variant<'static>> = Vec::new();
            Variant::from((number, only(of_row(&row), &property_names), under))
        });
        Ok((
            REVISION,
            (parent_id, only(properties, &property_names), children.collect()),
        ))
    }

    fn get_group_properties(&self, ids: Vec<i32>, property_names: Vec<String>) -> Vec<(i32, Properties)> {
        let ids = if ids.is_empty() {
            self.rows().into_iter().map(|(number, _)| number).collect()
        } else {
            ids
        };
        ids.into_iter()
            .filter_map(|id| Some((id, only(self.properties(id)?, &property_names))))
            .collect()
    }

    fn get_property(&self, id: i32, name: String) -> fdo::Result<Variant<'static>> {
        let found = self.properties(id).and_then(|mut all| all.remove(name.as_str()));
        found.ok_or_else(no_row)
    }

    fn event(&self, id: i32, event_id: String, _data: OwnedVariant, _timestamp: u32) -> fdo::Result<()> {
        if self.click(id, &event_id) {
            Ok(())
        } else {
            Err(no_row())
        }
    }

    fn event_group(&self, events: Vec<(i32, String, OwnedVariant, u32)>) -> Vec<i32> {
        let unknown = events.into_iter().filter(|(id, what, _, _)| !self.click(*id, what));
        unknown.map(|(id, _, _, _)| id).collect()
    }

    /// Nothing has to be made first.
    fn about_to_show(&self, _id: i32) -> bool {
        false
    }

    fn about_to_show_group(&self, ids: Vec<i32>) -> (Vec<i32>, Vec<i32>) {
        let unknown = ids.into_iter().filter(|id| self.properties(*id).is_none());
        (Vec::new(), unknown.collect())
    }

    #[zbus(signal)]
    async fn items_properties_updated(
        emitter: &SignalEmitter<'_>,
        updated: Vec<(i32, Properties)>,
        removed: Vec<(i32, Vec<String>)>,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn layout_updated(emitter: &SignalEmitter<'_>, revision: u32, parent: i32) -> zbus::Result<()>;
}

fn no_row() -> fdo::Error {
    fdo::Error::InvalidArgs("the menu has no such row or property".to_owned())
}

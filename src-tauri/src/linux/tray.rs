//! The tray as Linux panels take it: an item on the session bus that announces itself to the panel's watcher and again to every
//! later one (`org.kde.StatusNotifierItem`). No toolkit is loaded. What it shows and what a click means is the controller's;
//! what panels read stands in `status_item` and `menu_on_bus`.

use super::menu_on_bus::{Menu, MenuSignals as _};
use super::panel_colour;
use super::status_item::{StatusItem, StatusItemSignals as _};
use crate::controller::{Choice, Event, TrayView};
use crate::menu::Labels;
use crate::shell::Events;
use crate::sign::Panel;
use crate::words::Words;
use futures_util::StreamExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};
use zbus::fdo::{DBusProxy, NameOwnerChangedStream};
use zbus::names::BusName;
use zbus::object_server::SignalEmitter;
use zbus::{Connection, connection};

const WATCHER: &str = "org.kde.StatusNotifierWatcher";
const WATCHER_PATH: &str = "/StatusNotifierWatcher";
const ITEM_PATH: &str = "/StatusNotifierItem";
pub(super) const MENU_PATH: &str = "/MenuBar";

/// What is shown now: the bus reads it, the tray's task writes it.
pub(super) struct Showing {
    pub(super) view: TrayView,
    pub(super) labels: Labels,
    pub(super) panel: Panel,
}

/// The same for the item and its menu.
#[derive(Clone)]
pub(super) struct Shared {
    showing: Arc<Mutex<Showing>>,
    events: Events,
}

impl Shared {
    pub(super) fn look<T>(&self, at: impl FnOnce(&mut Showing) -> T) -> T {
        // Nothing that holds this lock can leave it half changed.
        at(&mut self.showing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn chose(&self, choice: Choice) {
        self.events.put(Event::Chose(choice));
    }
}

/// The tray as the rest of this program sees it.
pub(super) struct Tray {
    views: mpsc::UnboundedSender<TrayView>,
    there: watch::Receiver<bool>,
}

impl Tray {
    /// Puts the tray on the session bus, where there is one. Whether a panel shows it is told by [`Event::Tray`]; nothing waits
    /// for it here.
    pub(super) fn start(words: &Words, panel: Option<Panel>, events: Events) -> Self {
        let shared = Shared {
            showing: Arc::new(Mutex::new(Showing {
                view: TrayView::at_start(words),
                labels: Labels::of(words),
                panel: panel.unwrap_or_default(),
            })),
            events,
        };
        let (views, to_show) = mpsc::unbounded_channel();
        let (said, there) = watch::channel(false);
        tokio::spawn(async move {
            if let Err(error) = live(shared, panel.is_none(), to_show, said).await {
                tracing::warn!("no tray: the session bus says {error}; closing the window will end this program");
            }
        });
        Self { views, there }
    }

    /// Shows this.
    pub(super) fn show(&self, view: TrayView) {
        // Nobody takes it where there is no bus; that was said once.
        let _ = self.views.send(view);
    }

    /// Becomes true when a panel has taken the tray, and false where none ever will.
    pub(super) fn is_taken(&self) -> impl Future<Output = bool> + 'static {
        let mut there = self.there.clone();
        async move { there.wait_for(|there| *there).await.is_ok() }
    }
}

/// Runs as long as the bus does.
async fn live(
    shared: Shared,
    ask_for_panel: bool,
    to_show: mpsc::UnboundedReceiver<TrayView>,
    said: watch::Sender<bool>,
) -> zbus::Result<()> {
    let name = format!("org.kde.StatusNotifierItem-{}-1", std::process::id());
    let bus = connection::Builder::session()
        .serve_at(ITEM_PATH, StatusItem::new(shared.clone()))
        .serve_at(MENU_PATH, Menu::new(shared.clone()))
        .name(name.as_str())
        .build()
        .await?;
    let dbus = DBusProxy::new(&bus).await?;
    let watchers = dbus.receive_name_owner_changed_with_args(&[(0, WATCHER)]).await?;
    let announcing = Announcing {
        bus: bus.clone(),
        name,
        said,
        events: shared.events.clone(),
    };
    let desktops = std::env::var("XDG_CURRENT_DESKTOP").unwrap_or_default();
    let follows = ask_for_panel && panel_colour::follows_the_scheme(&desktops);
    tokio::join!(
        announcing.keep(watchers),
        follow_the_panel(follows, &bus, &shared),
        draw(&bus, &shared, to_show)
    );
    Ok(())
}

async fn follow_the_panel(follows: bool, bus: &Connection, shared: &Shared) {
    if !follows {
        return;
    }
    let (said, mut panels) = mpsc::unbounded_channel();
    let watched = panel_colour::watch(bus, |panel| {
        // The other end lives as long as this one.
        let _ = said.send(panel);
    });
    let drawn = async {
        while let Some(panel) = panels.recv().await {
            let before = shared.look(|showing| std::mem::replace(&mut showing.panel, panel));
            if before != panel
                && let Err(error) = redraw_icon(bus).await
            {
                tracing::warn!(%error, "the tray's icon stays as it is");
            }
        }
    };
    let ended = tokio::select! {
        watched = watched => watched,
        () = drawn => Ok(()),
    };
    if let Err(error) = ended {
        tracing::info!("the desktop does not tell whether its panel is light: {error}");
    }
}

async fn redraw_icon(bus: &Connection) -> zbus::Result<()> {
    SignalEmitter::new(bus, ITEM_PATH)?.new_icon().await
}

/// Tells panels of the tray, now and whenever one comes.
struct Announcing {
    bus: Connection,
    name: String,
    said: watch::Sender<bool>,
    events: Events,
}

impl Announcing {
    async fn keep(self, mut watchers: NameOwnerChangedStream) {
        self.announce().await;
        while let Some(change) = watchers.next().await {
            let Ok(change) = change.args() else {
                continue;
            };
            if change.new_owner().is_some() {
                self.announce().await;
            } else {
                self.is_there(false);
            }
        }
        // The bus is gone, and the tray with it.
        self.is_there(false);
    }

    async fn announce(&self) {
        let watcher = BusName::try_from(WATCHER).ok();
        let announced = self
            .bus
            .call_method(
                watcher,
                WATCHER_PATH,
                Some(WATCHER),
                "RegisterStatusNotifierItem",
                &(self.name.as_str()),
            )
            .await;
        if let Err(error) = &announced {
            tracing::info!("no panel takes the tray: {error}");
        }
        self.is_there(announced.is_ok());
    }

    fn is_there(&self, there: bool) {
        let changed = self
            .said
            .send_if_modified(|said| std::mem::replace(said, there) != there);
        if changed {
            self.events.put(Event::Tray { there });
        }
    }
}

async fn draw(bus: &Connection, shared: &Shared, mut views: mpsc::UnboundedReceiver<TrayView>) {
    while let Some(view) = views.recv().await {
        if let Err(error) = draw_one(bus, shared, view).await {
            tracing::warn!(%error, "the tray could not be shown");
        }
    }
}

async fn draw_one(bus: &Connection, shared: &Shared, view: TrayView) -> zbus::Result<()> {
    let before = shared.look(|showing| std::mem::replace(&mut showing.view, view.clone()));
    let item = SignalEmitter::new(bus, ITEM_PATH)?;
    if before.sign != view.sign {
        item.new_icon().await?;
        item.new_status(StatusItem::status_of(view.sign)).await?;
    }
    if before.state != view.state {
        item.new_tool_tip().await?;
    }
    let rows = shared.look(|showing| Menu::changed(showing, &before));
    let menu = SignalEmitter::new(bus, MENU_PATH)?;
    menu.items_properties_updated(rows, Vec::new()).await
}

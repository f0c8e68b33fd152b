//! The line to the agent: one stream of events, begun anew whenever it breaks. What an event means is the controller's.

use crate::controller::Event;
use crate::trouble::{Kind, Trouble};
use sela_client::Client;
use std::time::Duration;
use tokio::sync::mpsc::Sender;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Runs until nobody listens to `news` any more.
pub(crate) async fn keep(client: Client, news: Sender<Event>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let heard = listen(&client, &news).await;
        if heard.any {
            pause = FIRST_PAUSE;
        }
        if news.send(Event::Lost(heard.end)).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

struct Heard {
    any: bool,
    end: Trouble,
}

async fn listen(client: &Client, news: &Sender<Event>) -> Heard {
    let mut any = false;
    let end = loop_over(client, news, &mut any).await;
    let left = || Trouble {
        kind: Kind::NotRunning,
        message: "the agent has left".to_owned(),
    };
    Heard {
        any,
        end: end.map_or_else(Trouble::from, |()| left()),
    }
}

async fn loop_over(client: &Client, news: &Sender<Event>, any: &mut bool) -> Result<(), sela_client::ClientError> {
    let mut events = client.events().await?;
    while let Some(event) = events.next().await? {
        *any = true;
        if news.send(Event::Heard(Box::new(event.event))).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

//! What the exchange says, made into inputs of the core: signatures are checked and receipts stored here, and each message is
//! acknowledged once what follows from it is on the disk.

use super::agent_loop::AgentLoop;
use super::effects::Dependent;
use crate::market::LinkNews;
use crate::store::Entry;
use sela_core::{Input, MarketInput};
use sela_protocol::envelope::Envelope;
use sela_protocol::lease::Receipt;
use sela_protocol::node::ExchangeMessage;
use sela_protocol::units::UtcMs;

/// A clock that is off by more than this is worth a line in the log, in milliseconds.
const SKEW_MS: u64 = 5_000;

impl AgentLoop {
    pub(super) fn hear(&mut self, news: LinkNews) -> anyhow::Result<()> {
        match news {
            LinkNews::State(link) => self.step(Input::Market(MarketInput::Link(link))),
            LinkNews::Session {
                session,
                node,
                exchange,
                resumed,
            } => {
                self.hands.session = Some(session);
                self.hands.exchange = Some(exchange);
                self.step(Input::Market(MarketInput::Session { node, resumed }))
            }
            LinkNews::Message {
                session,
                number,
                message,
            } => {
                // News of a link that was left are still in the queue for a moment.
                if self.hands.session != Some(session) {
                    return Ok(());
                }
                if let Some(input) = self.input_of(*message) {
                    self.step(Input::Market(input))?;
                }
                self.hands.then(Dependent::ActedOn { session, number });
                Ok(())
            }
        }
    }

    fn input_of(&mut self, message: ExchangeMessage) -> Option<MarketInput> {
        match message {
            ExchangeMessage::Award(award) => Some(MarketInput::Award(award)),
            ExchangeMessage::Renew { beat, end } => Some(MarketInput::Renew { beat, end }),
            ExchangeMessage::Cancel {
                lease,
                fencing,
                cause,
                save,
            } => Some(MarketInput::Cancel {
                lease,
                fencing,
                cause,
                save,
            }),
            ExchangeMessage::Receipt(envelope) => self.receipt(envelope),
            ExchangeMessage::Refused { lease, message } => {
                tracing::warn!(?lease, message, "the exchange did not act on something");
                Some(MarketInput::Refused { lease, message })
            }
            ExchangeMessage::Time { utc_ms } => {
                say_skew(utc_ms);
                None
            }
            ExchangeMessage::Unknown => None,
        }
    }

    fn receipt(&mut self, envelope: Envelope<Receipt>) -> Option<MarketInput> {
        let opened = self.hands.exchange.map(|exchange| envelope.open(&exchange));
        match opened {
            Some(Ok(receipt)) => {
                let receipt = Box::new(receipt);
                self.hands.store.append(Entry::Receipt {
                    receipt: receipt.clone(),
                    envelope: Box::new(envelope),
                });
                Some(MarketInput::Receipt(receipt))
            }
            Some(Err(error)) => {
                tracing::error!(%error, "a receipt that proves nothing was not kept");
                None
            }
            None => None,
        }
    }
}

fn say_skew(exchange: UtcMs) {
    let own = sela_clock::now().utc_ms;
    let off = own.0.abs_diff(exchange.0);
    if off > SKEW_MS {
        tracing::warn!(
            off_ms = off,
            "this machine's clock and the exchange's differ; set the clock (NTP)"
        );
    }
}

//! One card as the agent knows it: what it is, what it reported, whether it is fit to be lent, who has it. What is done
//! about it is in `lease` and `state`.

use crate::lease::Lease;
use crate::policy::CardPolicy;
use crate::wake::Wake;
use sela_protocol::card::{CardDescription, CardReading, Reading};
use sela_protocol::local::YieldMeasure;
use sela_protocol::node::Offer;
use sela_protocol::presence::HoldReason;
use sela_protocol::units::{BootMs, Celsius, Millis, Now};

/// One card.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) description: CardDescription,
    pub(crate) reading: Option<CardReading>,
    /// When it was last heard of; from here its silence is counted.
    pub(crate) heard: BootMs,
    pub(crate) unreadable: Option<String>,
    pub(crate) heat: Heat,
    pub(crate) cool_off_until: Option<BootMs>,
    /// Whether something that is seen held it when it was last looked at.
    pub(crate) sensed: bool,
    /// What was seen must stay away until here.
    pub(crate) settling_until: Option<BootMs>,
    pub(crate) lease: Option<Lease>,
    pub(crate) last_yield: Option<YieldMeasure>,
    /// What the exchange was last told in this session.
    pub(crate) offered: Option<Offer>,
}

/// Whether the card may carry load, by its core temperature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heat {
    /// Below the hard cap, as far as it is known.
    Fit,
    /// It was at or above the hard cap and has not cooled for long enough.
    Hot {
        /// The newest valid temperature.
        temperature: Celsius,
        /// Valid samples below `resume_below` in a row.
        cool_samples: u32,
    },
}

impl Card {
    pub(crate) const fn new(description: CardDescription, now: Now) -> Self {
        Self {
            description,
            reading: None,
            heard: now.boot_ms,
            unreadable: None,
            heat: Heat::Fit,
            cool_off_until: None,
            sensed: false,
            settling_until: None,
            lease: None,
            last_yield: None,
            offered: None,
        }
    }

    /// Takes a reading. An invalid temperature never counts as a cool one.
    pub(crate) fn hear(&mut self, reading: CardReading, policy: &CardPolicy, now: Now) {
        if let Reading::Value { value } = reading.temperature {
            self.heat = self.heat.after(value, policy);
            // Only a valid temperature is a sign of life: a card that answers without one cannot be guarded.
            self.heard = now.boot_ms;
        }
        self.unreadable = None;
        if let (Some(lease), Some(power)) = (&mut self.lease, reading.power.value()) {
            lease.energy.add(*power, now.boot_ms);
        }
        self.reading = Some(reading);
    }

    /// Reasons of the card's own that hold it.
    pub(crate) fn unfit(&self, policy: &CardPolicy, patience: Millis, now: Now, wake: &mut Wake) -> Vec<HoldReason> {
        let mut reasons = Vec::new();
        if let Some(why) = &self.unreadable {
            reasons.push(HoldReason::CardUnreadable { why: why.clone() });
        } else if wake.due(now.boot_ms, self.heard.plus(patience)) {
            let silent = now.boot_ms.since(self.heard);
            reasons.push(HoldReason::CardUnreadable {
                why: format!(
                    "no valid temperature for {} ms; the card cannot be guarded without one",
                    silent.0
                ),
            });
        } else if self.reading.is_none() {
            reasons.push(HoldReason::CardUnreadable {
                why: "no reading yet".into(),
            });
        }
        if let Heat::Hot { temperature, .. } = self.heat {
            reasons.push(HoldReason::Hot {
                temperature,
                resume_below: policy.resume_below,
            });
        }
        reasons
    }
}

impl Heat {
    const fn after(self, temperature: Celsius, policy: &CardPolicy) -> Self {
        if temperature.0 >= policy.core_hard.0 {
            return Self::Hot {
                temperature,
                cool_samples: 0,
            };
        }
        match self {
            Self::Fit => Self::Fit,
            Self::Hot { cool_samples, .. } => {
                let cool_samples = if temperature.0 < policy.resume_below.0 {
                    cool_samples + 1
                } else {
                    0
                };
                if cool_samples >= policy.resume_samples {
                    Self::Fit
                } else {
                    Self::Hot {
                        temperature,
                        cool_samples,
                    }
                }
            }
        }
    }
}

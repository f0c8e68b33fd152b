//! What a job may reach of the network: hosts by name, as tenants ask for them and as owners allow them. Words and the checks
//! that need nothing but the words; whoever connects checks the addresses that the names lead to.

mod host;
mod rule;

pub use host::{Host, HostError, HostName};
pub use rule::{HostRule, Hosts, RuleError};

use crate::units::Bytes;
use serde::{Deserialize, Deserializer, Serialize};

/// The port where a rule names none: HTTPS.
pub const DEFAULT_PORT: u16 = 443;

/// Rules that a job, or an owner, may have.
pub const MOST_RULES: usize = 64;

/// A slower connection than this, in bytes a second, is not worth opening.
pub const LEAST_RATE: Bytes = Bytes(1 << 10);

/// What a job asks for. Without it a job has no network at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobNetwork {
    /// The hosts that it may reach, and nothing else.
    pub hosts: Vec<HostRule>,
    /// Most bytes that it may receive in a second, all connections together; the owner's cap holds, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_per_s: Option<Bytes>,
    /// The same for what it sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_per_s: Option<Bytes>,
    /// Most bytes that it may receive and send in all, each lease anew; the owner's cap holds, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
}

impl JobNetwork {
    /// What contradicts itself: the field below `network`, and what would be right.
    pub(crate) fn problem(&self) -> Option<(&'static str, String)> {
        if self.hosts.is_empty() {
            return Some((
                "network.hosts",
                "name at least one host, or leave network out: a job without it has none".to_owned(),
            ));
        }
        if self.hosts.len() > MOST_RULES {
            return Some((
                "network.hosts",
                format!("at most {MOST_RULES}; \"*.example.org\" stands for all below a name"),
            ));
        }
        if self.hosts.iter().any(|rule| *rule.hosts() == Hosts::Any) {
            return Some((
                "network.hosts",
                "\"*\" is for owners: name the hosts, or \"*.example.org\" for all below a name".to_owned(),
            ));
        }
        let slow = |rate: Option<Bytes>| rate.is_some_and(|rate| rate < LEAST_RATE);
        for (field, rate) in [
            ("network.down_per_s", self.down_per_s),
            ("network.up_per_s", self.up_per_s),
        ] {
            if slow(rate) {
                return Some((field, format!("at least {} bytes a second", LEAST_RATE.0)));
            }
        }
        (self.bytes == Some(Bytes(0))).then(|| ("network.bytes", "at least 1".to_owned()))
    }
}

/// What an owner lets jobs use of the line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkShare {
    /// The hosts that jobs may reach; none where empty.
    pub hosts: Vec<HostRule>,
    /// Most bytes that all jobs together may receive in a second.
    pub down_per_s: Bytes,
    /// The same for what they send.
    pub up_per_s: Bytes,
    /// Most bytes that one lease may receive and send in all.
    pub job_bytes: Bytes,
}

/// No hosts. The caps, where hosts are allowed: half of a usual line at home, and as much as a large model weighs.
impl Default for NetworkShare {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            down_per_s: Bytes(6_250_000),
            up_per_s: Bytes(1_250_000),
            job_bytes: Bytes::from_gib(20),
        }
    }
}

/// The first of the asked rules that none of the allowed ones covers.
pub fn first_uncovered<'a>(allowed: &[HostRule], asked: &'a [HostRule]) -> Option<&'a HostRule> {
    asked
        .iter()
        .find(|rule| !allowed.iter().any(|allowed| allowed.covers(rule)))
}

/// What a job has used of the network so far, for its owner's eyes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "bindings", derive(ts_rs::TS))]
pub struct NetworkUse {
    /// The hosts that it may reach, as its tenant wrote them.
    pub hosts: Vec<String>,
    /// Bytes received.
    pub down: Bytes,
    /// Bytes sent.
    pub up: Bytes,
    /// Connections that were refused or failed.
    pub refused: u32,
    /// The newest refusal, in words.
    pub last_refusal: Option<String>,
}

/// Rules from another program: forms that only a newer one knows are passed over, and so is what goes beyond [`MOST_RULES`].
pub(crate) fn known_rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<HostRule>, D::Error> {
    let written = Vec::<String>::deserialize(deserializer)?;
    Ok(written
        .iter()
        .filter_map(|rule| rule.parse().ok())
        .take(MOST_RULES)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobSpec;
    use crate::node::Offer;
    use serde_json::json;

    fn spec_with(network: &serde_json::Value) -> Result<JobSpec, String> {
        let spec = json!({
            "image": {"type": "archive", "blob": format!("sha256:{}", "0".repeat(64))},
            "cap": "0.600000", "budget": "1.000000", "wall_limit_ms": 600_000, "network": network,
        });
        JobSpec::parse(&spec.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_job_has_no_network_but_the_hosts_that_it_names() {
        assert_eq!(spec_with(&serde_json::Value::Null).expect("a good spec").network, None);
        let spec = spec_with(&json!({"hosts": ["huggingface.co", "*.hf.co:8443"], "bytes": 1_000})).expect("good");
        let network = spec.network.clone().expect("a network");
        let hosts: Vec<String> = network.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["huggingface.co", "*.hf.co:8443"]);
        let again = JobSpec::parse(&serde_json::to_string(&spec).expect("JSON")).expect("reads back");
        assert_eq!(again, spec);
    }

    #[test]
    fn each_bad_network_says_what_would_be_right() {
        let many: Vec<String> = (0..65).map(|number| format!("host{number}.example.org")).collect();
        for (network, says) in [
            (json!({"hosts": []}), "network.hosts: name at least one host"),
            (json!({"hosts": many}), "network.hosts: at most 64"),
            (json!({"hosts": ["*"]}), "\"*\" is for owners"),
            (json!({"hosts": ["https://example.org"]}), "write \"example.org\""),
            (json!({"hosts": ["10.0.0.1"]}), "not on the public internet"),
            (
                json!({"host": ["example.org"]}),
                "\"network.host\": did you mean \"hosts\"",
            ),
            (
                json!({"hosts": ["example.org"], "down_per_s": 1}),
                "network.down_per_s: at least 1024",
            ),
            (
                json!({"hosts": ["example.org"], "up_per_s": 0}),
                "network.up_per_s: at least 1024",
            ),
            (
                json!({"hosts": ["example.org"], "bytes": 0}),
                "network.bytes: at least 1",
            ),
            (json!({"bytes": 1}), "missing field `hosts`"),
        ] {
            let error = spec_with(&network).expect_err(says);
            assert!(error.contains(says), "{error} should say {says}");
        }
    }

    #[test]
    fn an_offer_of_a_newer_program_is_taken_without_the_rules_that_only_it_knows() {
        let offer = |network: serde_json::Value| -> Offer {
            let offer = json!({"gpu": "GPU-1", "floor": "0.1", "available": true, "network": network});
            serde_json::from_value(offer).expect("an offer")
        };
        let taken = offer(json!(["example.org", "port 443 of anybody", "*.example.org"])).network;
        assert_eq!(taken.len(), 2);
        let many: Vec<String> = (0..100).map(|number| format!("host{number}.example.org")).collect();
        assert_eq!(offer(json!(many)).network.len(), MOST_RULES);
        let old: Offer =
            serde_json::from_value(json!({"gpu": "GPU-1", "floor": "0.1", "available": true})).expect("an old offer");
        assert_eq!(old.network, []);
        assert!(!serde_json::to_string(&old).expect("JSON").contains("network"));
    }

    #[test]
    fn what_no_rule_of_the_owners_covers_is_named() {
        let rules = |texts: &[&str]| -> Vec<HostRule> { texts.iter().map(|text| text.parse().expect(text)).collect() };
        let asked = rules(&["www.example.org", "*.example.net"]);
        assert_eq!(first_uncovered(&rules(&["*"]), &asked), None);
        assert_eq!(
            first_uncovered(&rules(&["*.example.org", "*.example.net"]), &asked),
            None
        );
        assert_eq!(first_uncovered(&rules(&["*.example.org"]), &asked), Some(&asked[1]));
        assert_eq!(first_uncovered(&[], &asked), Some(&asked[0]));
        assert_eq!(first_uncovered(&[], &[]), None);
    }
}

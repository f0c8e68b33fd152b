//! The command line: `serve` runs the exchange, `admin` asks a running one over its REST interface. The only place that
//! prints, and where failures become exit codes (conventions.md: 0 done, 1 failed, 2 usage, 3 not running, 4 refused, 5
//! unavailable).

use crate::collect::Room;
use crate::keys::{self, OPERATOR_KEY_FILE, Secret};
use crate::listener::Limits;
use crate::logs::LOG_LIMIT;
use crate::serve::{self, ADDRESS_FILE, Settings, StartError};
use crate::session::socket::Pace;
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use reqwest::{Method, StatusCode};
use sela_protocol::id::TenantId;
use sela_protocol::local::Problem;
use sela_protocol::money::Micros;
use sela_protocol::plain::{self, OneLine};
use sela_protocol::tenant::{
    Deposit, LedgerCheck, NewOwner, NewTenant, NodeView, OwnerInvited, TenantAccount, TenantCreated,
};
use sela_protocol::units::{Bytes, Millis};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The market's server: nodes, jobs, auctions, leases, ledger.
#[derive(Debug, Parser)]
#[command(name = "sela-exchange", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an exchange until SIGTERM or SIGINT.
    Serve(ServeArguments),
    /// Ask a running exchange as its operator.
    Admin(AdminArguments),
}

#[derive(Debug, Args)]
struct ServeArguments {
    /// The folder of everything that the exchange keeps; made where it is missing.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where to listen; port 0 takes any. The address is also written to DIR/address.
    #[arg(long, default_value = "127.0.0.1:7350", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Allow an address that is not loopback: a proxy in front speaks TLS.
    #[arg(long)]
    behind_tls_proxy: bool,
    /// Admit simulated cards and weakly isolated nodes; money has no worth.
    #[arg(long)]
    lab: bool,
    /// The exchange's name, for people.
    #[arg(long, default_value = "Sela exchange")]
    name: String,
    /// The exchange's share of what is due, in hundredths of a percent.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    fee_bp: u32,
    /// Most bytes that one blob may have.
    #[arg(long, default_value_t = 64 << 30, value_name = "BYTES")]
    blob_limit: u64,
    /// Most bytes that one tenant may have stored; what its jobs make counts, and is taken in any case.
    #[arg(long, default_value_t = 256 << 30, value_name = "BYTES")]
    tenant_quota: u64,
    /// How long a blob is kept after it was last put, stored by a job or named by one; longer as long as an unfinished job needs it.
    #[arg(long, default_value_t = 14, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..))]
    keep_blobs_days: u32,
    /// Blobs are refused when less than this is free on the disk, so that the ledger can go on.
    #[arg(long, default_value_t = 512 << 20, value_name = "BYTES")]
    free_floor: u64,
    /// Connections that one address may have open, nodes included. Behind a proxy all are of the proxy's address: let it bound what
    /// each of its peers may open.
    #[arg(long, default_value_t = 5_000, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    connections_per_address: u32,
}

#[derive(Debug, Args)]
struct AdminArguments {
    /// The exchange's data folder, on the same machine: tells address and key.
    #[arg(long, value_name = "DIR", required_unless_present = "url")]
    data: Option<PathBuf>,
    /// The exchange's address where it is another machine's.
    #[arg(long, value_name = "URL", requires = "key")]
    url: Option<String>,
    /// The operator's key; better given as SELA_OPERATOR_KEY, which no process list shows.
    #[arg(long, env = "SELA_OPERATOR_KEY", hide_env_values = true)]
    key: Option<String>,
    /// Print the exchange's reply as JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: AdminCommand,
}

#[derive(Debug, Subcommand)]
enum AdminCommand {
    /// Tenants, who bring jobs and pay.
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Owners, who are paid.
    #[command(subcommand)]
    Owner(OwnerCommand),
    /// The ledger.
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// The nodes that have connected since the exchange was started.
    Nodes,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Admit a tenant; its API key is shown once.
    Create {
        /// For people.
        name: String,
    },
    /// Book money that came in from outside.
    Fund {
        /// Whom (ten_…).
        tenant: TenantId,
        /// How much, like 25 or 0.412500.
        amount: Micros,
        /// The same key twice is one deposit; without it each call is one.
        #[arg(long)]
        idempotency_key: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum OwnerCommand {
    /// Invite an owner with one node; the invitation is shown once.
    Invite {
        /// For people.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum LedgerCommand {
    /// Sum all postings anew; exit code 1 if anything is wrong.
    Check,
}

/// What went wrong, and the exit code for it.
struct Failure {
    code: u8,
    error: anyhow::Error,
}

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const NOT_RUNNING: u8 = 3;
const REFUSED: u8 = 4;
const UNAVAILABLE: u8 = 5;

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let code = match serve::start_error(&error) {
            Some(StartError::NotLoopback(_)) => REFUSED,
            Some(StartError::FolderInUse(_) | StartError::AddressInUse(_)) => UNAVAILABLE,
            None if serve::is_other_kind(&error) => REFUSED,
            None => FAILED,
        };
        Self { code, error }
    }
}

impl Failure {
    fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self {
            code,
            error: error.into(),
        }
    }
}

/// Does what the command line asks for.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let done = runtime().map_err(Failure::from).and_then(|runtime| {
        runtime.block_on(async {
            match arguments.command {
                Command::Serve(arguments) => run_exchange(arguments).await,
                Command::Admin(arguments) => ask_exchange(arguments).await,
            }
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { code, error }) => {
            complain(&format!("sela-exchange: {error:#}"));
            ExitCode::from(code)
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime cannot be started")
}

async fn run_exchange(arguments: ServeArguments) -> Result<(), Failure> {
    log_to_stderr()?;
    // Job specs carry tenants' environment variables: nothing that the exchange writes is for others on this machine.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let lab = arguments.lab;
    let settings = Settings {
        data: arguments.data,
        listen: arguments.listen,
        behind_tls_proxy: arguments.behind_tls_proxy,
        lab,
        name: arguments.name,
        fee_basis_points: arguments.fee_bp,
        blob_limit: Bytes(arguments.blob_limit),
        room: Room {
            quota: Bytes(arguments.tenant_quota),
            keep: Millis::from_secs(u64::from(arguments.keep_blobs_days) * 86_400),
        },
        log_limit: LOG_LIMIT,
        free_floor: Bytes(arguments.free_floor),
        pace: Pace::default(),
        limits: Limits {
            per_address: arguments.connections_per_address as usize,
            ..Limits::default()
        },
    };
    let mut signals = Signals::listen()?;
    let mut running = serve::start(settings).await?;
    let note = if lab { " (LAB: money has no worth)" } else { "" };
    say(&format!("sela-exchange listening on http://{}{note}", running.address));
    tokio::select! {
        () = signals.any() => Ok(running.stop().await?),
        error = running.failed() => Err(Failure::new(FAILED, error)),
    }
}

fn log_to_stderr() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_env_var("SELA_LOG")
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env()
        .context("SELA_LOG does not read: write it like info or sela_exchange=debug")?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| OneLine(std::io::stderr()))
        .with_ansi(false)
        .init();
    Ok(())
}

struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be waited for")?,
            interrupt: signal(SignalKind::interrupt()).context("SIGINT cannot be waited for")?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn ask_exchange(arguments: AdminArguments) -> Result<(), Failure> {
    let operator = Operator::new(&arguments)?;
    let json = arguments.json;
    match arguments.command {
        AdminCommand::Tenant(TenantCommand::Create { name }) => {
            let created: TenantCreated = operator.post("/v1/admin/tenants", &NewTenant { name }).await?;
            let TenantCreated { tenant, api_key } = &created;
            show(json, &created, || {
                format!("tenant {tenant}\nAPI key {api_key}\nThe key is shown only now: keep it.")
            })
        }
        AdminCommand::Tenant(TenantCommand::Fund {
            tenant,
            amount,
            idempotency_key,
        }) => {
            let idempotency_key = match idempotency_key {
                Some(key) => key,
                None => hex::encode(keys::random_bytes::<32>()?),
            };
            let deposit = Deposit {
                amount,
                idempotency_key,
            };
            let path = format!("/v1/admin/tenants/{tenant}/deposits");
            let account: TenantAccount = operator.post(&path, &deposit).await?;
            show(json, &account, || {
                let lab = if account.lab { " (LAB: money has no worth)" } else { "" };
                format!("{} has {} available{lab}", account.tenant, account.available)
            })
        }
        AdminCommand::Owner(OwnerCommand::Invite { name }) => {
            let invited: OwnerInvited = operator.post("/v1/admin/owners", &NewOwner { name }).await?;
            show(json, &invited, || {
                let OwnerInvited { owner, invitation } = &invited;
                format!(
                    "owner {owner}\ninvitation {invitation}\nWrite the invitation into the node's agent.toml; it admits one node \
                     and is shown only now."
                )
            })
        }
        AdminCommand::Ledger(LedgerCommand::Check) => {
            let check: LedgerCheck = operator.get("/v1/admin/ledger/check").await?;
            show(json, &check, || ledger_text(&check))?;
            let good = check.postings_sum == Micros::ZERO && check.unbalanced.is_empty() && check.overdrawn.is_empty();
            if good {
                Ok(())
            } else {
                Err(Failure::new(FAILED, anyhow::anyhow!("the ledger does not check")))
            }
        }
        AdminCommand::Nodes => {
            let nodes: Vec<NodeView> = operator.get("/v1/admin/nodes").await?;
            show(json, &nodes, || nodes_text(&nodes))
        }
    }
}

fn ledger_text(check: &LedgerCheck) -> String {
    let sum = if check.postings_sum == Micros::ZERO {
        "0".to_owned()
    } else {
        check.postings_sum.to_string()
    };
    let mut lines = vec![
        format!("postings sum: {sum}"),
        format!("postings: {}, transfers: {}", check.postings, check.transfers),
    ];
    lines.extend(check.unbalanced.iter().map(|transfer| format!("UNBALANCED {transfer}")));
    lines.extend(check.overdrawn.iter().map(|account| format!("OVERDRAWN {account}")));
    lines.extend(
        check
            .balances
            .iter()
            .map(|balance| format!("{:>20}  {}", balance.balance.to_string(), balance.account)),
    );
    lines.join("\n")
}

fn nodes_text(nodes: &[NodeView]) -> String {
    if nodes.is_empty() {
        return "no node has connected since the exchange was started".to_owned();
    }
    let mut lines = Vec::new();
    for node in nodes {
        let state = if node.connected { "connected" } else { "not connected" };
        let name = plain::line(&node.name);
        lines.push(format!("{} \"{name}\" of {}: {state}", node.node, node.owner));
        for card in &node.cards {
            let offer = node.offers.iter().find(|offer| offer.gpu == card.uuid);
            let offer = match offer {
                Some(offer) if offer.available => format!("offered from {} per hour", offer.floor),
                Some(_) | None => "not offered".to_owned(),
            };
            let (name, uuid) = (plain::line(&card.name), plain::line(&card.uuid.0));
            lines.push(format!("  {name} ({uuid}): {offer}"));
        }
    }
    lines.join("\n")
}

/// The client of `/v1/admin`.
struct Operator {
    client: reqwest::Client,
    url: String,
    key: Secret,
}

impl Operator {
    fn new(arguments: &AdminArguments) -> Result<Self, Failure> {
        // Only the first call in a process installs it; a second one finds it there.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .build()
            .context("the HTTP client cannot be made")?;
        let url = match (&arguments.url, &arguments.data) {
            (Some(url), _) => checked_url(url)?,
            (None, Some(data)) => format!("http://{}", read_address(data)?),
            (None, None) => {
                return Err(Failure::new(
                    USAGE,
                    anyhow::anyhow!("say which exchange: --data DIR or --url URL"),
                ));
            }
        };
        let key = match (&arguments.key, &arguments.data) {
            (Some(key), _) => Secret::from_text(key.clone()),
            (None, Some(data)) => keys::read_secret(&data.join(OPERATOR_KEY_FILE))?,
            (None, None) => return Err(Failure::new(USAGE, anyhow::anyhow!("--url needs --key"))),
        };
        Ok(Self { client, url, key })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.send(Method::GET, path, None::<&()>).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.send(Method::POST, path, Some(body)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(self.key.reveal());
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| {
            let code = if error.is_connect() { NOT_RUNNING } else { UNAVAILABLE };
            let what = format!("no exchange answers at {}: is it running?", self.url);
            Failure::new(code, anyhow::Error::from(error).context(what))
        })?;
        let status = response.status();
        let bytes = response
            .bytes()
            .await
            .map_err(|error| Failure::new(UNAVAILABLE, error))?;
        if status.is_success() {
            return serde_json::from_slice(&bytes)
                .context("the exchange's reply does not read: is it of another version?")
                .map_err(Failure::from);
        }
        let detail = serde_json::from_slice::<Problem>(&bytes)
            .map_or_else(|_| format!("the exchange answered {status}"), |problem| problem.detail);
        let code = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => REFUSED,
            status if status.is_server_error() => UNAVAILABLE,
            _ => FAILED,
        };
        Err(Failure::new(code, anyhow::anyhow!(detail)))
    }
}

fn read_address(data: &Path) -> Result<SocketAddr, Failure> {
    let path = data.join(ADDRESS_FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let what = format!(
            "no exchange runs on {} ({} cannot be read)",
            data.display(),
            path.display()
        );
        Failure::new(NOT_RUNNING, anyhow::Error::from(error).context(what))
    })?;
    text.trim()
        .parse()
        .with_context(|| format!("{} holds no address", path.display()))
        .map_err(Failure::from)
}

/// The operator's key goes in the open only to this very machine.
fn checked_url(url: &str) -> Result<String, Failure> {
    let parsed = reqwest::Url::parse(url)
        .with_context(|| format!("\"{url}\" is no URL: write it like https://exchange.example"))
        .map_err(|error| Failure::new(USAGE, error))?;
    let host = parsed.host_str().unwrap_or_default();
    let loopback = host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    if parsed.scheme() == "https" || (parsed.scheme() == "http" && loopback) {
        Ok(url.trim_end_matches('/').to_owned())
    } else {
        Err(Failure::new(
            REFUSED,
            anyhow::anyhow!(
                "{url} would send the operator's key in the open: use https://, or http:// to this machine only"
            ),
        ))
    }
}

fn show<T: Serialize>(json: bool, reply: &T, text: impl FnOnce() -> String) -> Result<(), Failure> {
    if json {
        let written = serde_json::to_string_pretty(reply).context("the reply does not write as JSON")?;
        say(&plain::json(&written));
    } else {
        say(&plain::lines(&text()));
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is the command line")]
fn say(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "this is the command line")]
fn complain(text: &str) {
    eprintln!("{}", plain::lines(text));
}

//! What the operator does: admit tenants, book their money, invite owners, read and check the ledger, see the nodes.

use crate::rest::jobs::unexpected;
use crate::rest::problem::Refused;
use crate::rest::{Operator, Shared, in_path, query, written_body};
use crate::store::ledger;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use sela_market::effect::Answer;
use sela_market::input::Ask;
use sela_protocol::tenant::{
    DEPOSIT_FIELDS, Deposit, LedgerCheck, NAME_FIELDS, NewOwner, NewTenant, NodeView, OwnerInvited, PostingView,
    TenantAccount, TenantCreated,
};
use sela_protocol::written::{self, Fields, WrittenError};
use serde::de::DeserializeOwned;

/// Most postings in one reply.
const PAGE: u32 = 1_000;

/// `POST /v1/admin/tenants`
pub(super) async fn create_tenant(
    State(exchange): Shared,
    _: Operator,
    body: Body,
) -> Result<(StatusCode, Json<TenantCreated>), Refused> {
    let NewTenant { name } = read(body, &NAME_FIELDS).await?;
    let answer = exchange.door.ask(Ask::CreateTenant { name }, None).await?;
    let Answer::TenantCreated(created) = answer else {
        return Err(unexpected("create a tenant"));
    };
    Ok((StatusCode::CREATED, Json(created)))
}

/// `POST /v1/admin/tenants/{tenant}/deposits`
pub(super) async fn deposit(
    State(exchange): Shared,
    _: Operator,
    Path(tenant): Path<String>,
    body: Body,
) -> Result<Json<TenantAccount>, Refused> {
    let tenant = in_path(&tenant)?;
    let Deposit {
        amount,
        idempotency_key,
    } = read(body, &DEPOSIT_FIELDS).await?;
    let ask = Ask::Deposit {
        tenant,
        amount,
        idempotency_key,
    };
    let answer = exchange.door.ask(ask, None).await?;
    let Answer::Deposited(account) = answer else {
        return Err(unexpected("book a deposit"));
    };
    Ok(Json(account))
}

/// `POST /v1/admin/owners`
pub(super) async fn invite_owner(
    State(exchange): Shared,
    _: Operator,
    body: Body,
) -> Result<(StatusCode, Json<OwnerInvited>), Refused> {
    let NewOwner { name } = read(body, &NAME_FIELDS).await?;
    let answer = exchange.door.ask(Ask::InviteOwner { name }, None).await?;
    let Answer::OwnerInvited(invited) = answer else {
        return Err(unexpected("invite an owner"));
    };
    Ok((StatusCode::CREATED, Json(invited)))
}

/// `GET /v1/admin/ledger/check`
pub(super) async fn check_ledger(State(exchange): Shared, _: Operator) -> Result<Json<LedgerCheck>, Refused> {
    Ok(Json(exchange.store.run(|connection| ledger::check(connection)).await?))
}

/// What `GET /v1/admin/ledger` asks for.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LedgerQuery {
    #[serde(default)]
    after: i64,
}

/// `GET /v1/admin/ledger`: postings after number `after`, oldest first; an empty list is the end.
pub(super) async fn postings(
    State(exchange): Shared,
    _: Operator,
    asked: Result<Query<LedgerQuery>, QueryRejection>,
) -> Result<Json<Vec<PostingView>>, Refused> {
    let LedgerQuery { after } = query(asked)?;
    let page = exchange
        .store
        .run(move |connection| ledger::page(connection, after, PAGE));
    Ok(Json(page.await?))
}

/// `GET /v1/admin/nodes`: the nodes that have connected since the exchange was started.
pub(super) async fn nodes(State(exchange): Shared, _: Operator) -> Result<Json<Vec<NodeView>>, Refused> {
    Ok(Json(exchange.door.look(|scene| scene.sessions.views()).await?))
}

async fn read<T: DeserializeOwned>(body: Body, fields: &Fields) -> Result<T, Refused> {
    written::from_json(&written_body(body).await?, fields).map_err(|error| {
        let code = match &error {
            WrittenError::UnknownField { .. } => "unknown_field",
            WrittenError::Malformed(_) => "malformed",
        };
        Refused::unprocessable(code, error)
    })
}

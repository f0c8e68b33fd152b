//! Errors of the REST interface: always `application/problem+json` with a code for programs and a sentence for people
//! that says what happened and what to do.

use crate::blobs::BlobError;
use crate::collect::KeepError;
use crate::door::{AskError, Stopping};
use crate::logs::LogError;
use crate::store::StoreError;
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use sela_market::effect::RefusalKind;
use sela_protocol::local::Problem;

/// A request that was refused or failed.
#[derive(Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    code: &'static str,
    detail: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status,
            code,
            detail: detail.into(),
        }
    }

    /// What was sent does not read: 400.
    pub(crate) fn bad_request(code: &'static str, detail: impl ToString) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail.to_string())
    }

    /// What was sent reads, and is wrong: 422.
    pub(crate) fn unprocessable(code: &'static str, detail: impl ToString) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail.to_string())
    }

    pub(crate) fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unknown_key", detail)
    }

    pub(crate) fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub(crate) fn too_large(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    fn disk_full(detail: impl ToString) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "disk_full", detail.to_string())
    }

    /// The exchange's own fault: the operator reads the cause in the log, the asker does not.
    pub(crate) fn internal(cause: &dyn std::fmt::Display) -> Self {
        tracing::error!(%cause, "a request failed");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "the exchange failed to do this; its operator finds the cause in its log",
        )
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let problem = Problem {
            code: self.code.to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::INSUFFICIENT_STORAGE
        ) {
            // The rest of the body may still be under way: this connection serves nothing more.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<Stopping> for Refused {
    fn from(stopping: Stopping) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", stopping.to_string())
    }
}

impl From<AskError> for Refused {
    fn from(error: AskError) -> Self {
        let detail = error.to_string();
        match error {
            AskError::Refused(refusal) => {
                let status = match refusal.kind() {
                    RefusalKind::NotFound => StatusCode::NOT_FOUND,
                    RefusalKind::Conflict => StatusCode::CONFLICT,
                    RefusalKind::BadInput => StatusCode::UNPROCESSABLE_ENTITY,
                    RefusalKind::TooMany => StatusCode::TOO_MANY_REQUESTS,
                    RefusalKind::Defect => StatusCode::INTERNAL_SERVER_ERROR,
                };
                Self::new(status, refusal.code(), detail)
            }
            AskError::KeyUsed => Self::new(StatusCode::CONFLICT, "idempotency_key_used", detail),
            AskError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", detail),
        }
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::DiskFull => {
                Self::disk_full("the exchange's disk is full: nothing was kept; try again later, or ask the operator")
            }
            StoreError::Closed => Stopping.into(),
            StoreError::Newer { .. }
            | StoreError::OtherKind { .. }
            | StoreError::Refused(_)
            | StoreError::Damaged(_)
            | StoreError::Sqlite(_) => Self::internal(&error),
        }
    }
}

impl From<KeepError> for Refused {
    fn from(error: KeepError) -> Self {
        match error {
            KeepError::Blob(error) => error.into(),
            KeepError::Store(error) => error.into(),
            KeepError::Ask(error) => error.into(),
            KeepError::OverQuota { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "quota_used", error.to_string()),
            KeepError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", error.to_string()),
        }
    }
}

impl From<BlobError> for Refused {
    fn from(error: BlobError) -> Self {
        match &error {
            BlobError::WrongHash { .. } => Self::unprocessable("wrong_hash", &error),
            BlobError::TooLarge(_) => Self::too_large(error.to_string()),
            BlobError::DiskFull => Self::disk_full(&error),
            BlobError::CutOff => Self::bad_request("cut_off", &error),
            BlobError::Disk(cause) => Self::internal(cause),
        }
    }
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Self {
        match &error {
            LogError::Gap { .. } => Self::new(StatusCode::CONFLICT, "gap", error.to_string()),
            LogError::TooLarge(_) => Self::too_large(error.to_string()),
            LogError::DiskFull => Self::disk_full(&error),
            LogError::Disk(cause) => Self::internal(cause),
        }
    }
}

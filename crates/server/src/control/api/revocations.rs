//! Handlers that show and change the list of revoked tokens and users.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use crore_net::clock;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answer::{Answer, ApiError, ErrorBody};
use crate::access::revocations::Revocation;
use crate::control::state::AdminState;
use crate::lifecycle::revoke::RevokeError;

/// The list of revoked tokens and users.
#[derive(Serialize, ToSchema)]
pub struct Revocations {
    revocations: Vec<Revocation>,
}

/// What to revoke: one of `user`, `jti` and `token`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeRequest {
    /// The name of a user: the claim `sub` of a token, the name that belongs to a password, or the user in an answer of the callback.
    user: Option<String>,
    /// The claim `jti` of a token.
    jti: Option<String>,
    /// A token itself. Without `expires`, the entry ends when the token and its connections (`expire_at`) have expired. The token is not stored.
    token: Option<String>,
    /// For a user: revoke only tokens that were issued (`iat`) before this Unix second, and tokens without `iat`. Without this value all credentials of the
    /// user are revoked.
    issued_before: Option<u32>,
    /// The Unix second at which the entry ends. Without it, the entry stays until it is removed (except the entry of a `token`).
    expires: Option<u32>,
}

impl RevokeRequest {
    fn entry(self) -> Result<Revocation, ApiError> {
        let now_unix_s = clock::unix_s();
        let entry = match (&self.user, &self.jti, &self.token) {
            (Some(user), None, None) => Revocation::of_user(user),
            (None, Some(jti), None) => Revocation::of_jti(jti),
            (None, None, Some(token)) => {
                Revocation::of_token(token.trim(), now_unix_s).map_err(ApiError::bad)?
            }
            _ => return Err(ApiError::bad("write one of user, jti and token")),
        };
        let entry = Revocation {
            issued_before: self.issued_before,
            expires: self.expires.or(entry.expires),
            ..entry
        };
        match entry.is_over(now_unix_s) {
            false => Ok(entry),
            true => Err(ApiError::bad(
                "expires is in the past, so nothing would be revoked; write a later Unix second, or leave it out",
            )),
        }
    }
}

/// The id of the entry that was removed from the list.
#[derive(Serialize, ToSchema)]
pub struct Reinstated {
    reinstated: String,
}

impl From<RevokeError> for ApiError {
    fn from(refused: RevokeError) -> ApiError {
        match refused {
            RevokeError::NoFile => ApiError::new(
                StatusCode::CONFLICT,
                "there is no list of what is revoked; name a file in access.revoked, and reload",
            ),
            RevokeError::InvalidEntry(reason) => ApiError::bad(reason),
            RevokeError::Cluster(reason) => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason),
            RevokeError::File(reason) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, reason),
        }
    }
}

/// Revoked tokens and users
#[utoipa::path(
    get,
    path = "/api/v1/revocations",
    tag = "access",
    responses(
        (status = 200, body = Revocations, description = "The list, without entries that are over"),
        (status = 409, body = ErrorBody, description = "The settings name no list"),
    )
)]
pub async fn list(State(state): State<AdminState>) -> Answer<Revocations> {
    let revocations = state.lifecycle.revocations()?;
    Ok(Json(Revocations { revocations }))
}

/// Revoke a token or a user
///
/// New requests with it get 401 from now on, and open connections with it end within 2 seconds.
#[utoipa::path(
    post,
    path = "/api/v1/revocations",
    tag = "access",
    request_body = RevokeRequest,
    responses(
        (status = 200, body = Revocation, description = "The entry, which is on disk, or in a cluster in NATS"),
        (status = 400, body = ErrorBody, description = "The body is invalid, or does not have exactly one of user, jti and token"),
        (status = 409, body = ErrorBody, description = "The settings name no list"),
        (status = 503, body = ErrorBody, description = "NATS does not take it"),
        (status = 415, body = ErrorBody, description = "Not application/json"),
    )
)]
pub async fn revoke(
    State(state): State<AdminState>,
    request: Result<Json<RevokeRequest>, JsonRejection>,
) -> Answer<Revocation> {
    let entry = request?.0.entry()?;
    state.lifecycle.revoke(entry.clone()).await?;
    Ok(Json(entry))
}

/// Take an entry off the list
#[utoipa::path(
    delete,
    path = "/api/v1/revocations/{id}",
    tag = "access",
    params(("id" = String, Path, description = "As the list has it")),
    responses(
        (status = 200, body = Reinstated, description = "The entry has been removed and has no effect any more"),
        (status = 404, body = ErrorBody, description = "There is no such entry"),
        (status = 409, body = ErrorBody, description = "The settings name no list"),
        (status = 503, body = ErrorBody, description = "NATS does not take it"),
    )
)]
pub async fn reinstate(
    State(state): State<AdminState>,
    Path(id): Path<String>,
) -> Answer<Reinstated> {
    match state.lifecycle.remove_revocation(&id).await? {
        true => Ok(Json(Reinstated { reinstated: id })),
        false => Err(ApiError::missing("entry")),
    }
}

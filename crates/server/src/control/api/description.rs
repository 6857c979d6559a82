//! Completes the generated description of the API: a name for each operation, a text for each response, and the limits of the current
//! settings.

use axum::http::StatusCode;
use crore_broker::settings::Limits;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::{OpenApi, RefOr};

/// The schemas of request bodies.
const BODIES: [&str; 2] = ["ToPublish", "ToEnd"];

/// Completes the description `api`, for a server with these limits.
pub fn complete(api: &mut OpenApi, limits: &Limits) {
    for (place, path) in &mut api.paths.paths {
        let methods = [
            ("get", &mut path.get),
            ("post", &mut path.post),
            ("delete", &mut path.delete),
        ];
        for (method, operation) in methods {
            let Some(operation) = operation else {
                continue;
            };
            operation.operation_id = Some(name(method, place));
            say_each_response(operation);
            for parameter in operation.parameters.iter_mut().flatten() {
                if let RefOr::T(parameter) = parameter
                    && let Some(schema) = &mut parameter.schema
                {
                    bound(&parameter.name, schema, limits);
                }
            }
        }
    }
    let schemas = api.components.iter_mut().flat_map(|all| &mut all.schemas);
    for (name, schema) in schemas {
        if let RefOr::T(Schema::Object(body)) = schema
            && BODIES.contains(&name.as_str())
        {
            let fields = body.properties.iter_mut();
            fields.for_each(|(name, schema)| bound(name, schema, limits));
        }
    }
}

/// A unique name for an operation (OpenAPI 3.1, section 4.8.10), like `get_connections_id`. The generated name is the handler's, and
/// handlers of several modules have the same name.
fn name(method: &str, place: &str) -> String {
    let place = place.trim_start_matches("/api/v1").replace(['{', '}'], "");
    format!(
        "{method}{}",
        place.replace(|c: char| !c.is_alphanumeric(), "_")
    )
}

/// Gives each response a text (OpenAPI 3.1, section 4.8.17). If the handler gives none, a success gets the summary of the operation, and an
/// error gets the standard phrase of its status.
fn say_each_response(operation: &mut Operation) {
    let summary = operation.summary.clone().unwrap_or_default();
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else {
            continue;
        };
        if response.description.is_empty() {
            let status: Option<StatusCode> = status.parse().ok();
            let reason = status.filter(|status| !status.is_success());
            let reason = reason.and_then(|status| status.canonical_reason());
            response.description = reason.map_or(summary.clone(), str::to_string);
        }
    }
}

/// Adds the limit of a setting to the schema of a text, as its maximum length. Settings count bytes and schemas count characters. A
/// character has at least one byte, so the limit holds for characters too.
fn bound(name: &str, schema: &mut RefOr<Schema>, limits: &Limits) {
    let bytes = match name {
        "name" | "topic" | "filter" => limits.topic_bytes,
        "data" => limits.message_bytes,
        "data_base64" => limits.message_bytes.div_ceil(3) * 4,
        _ => return,
    };
    let RefOr::T(Schema::Object(object)) = schema else {
        return;
    };
    let is_text = match &object.schema_type {
        SchemaType::Type(kind) => *kind == Type::String,
        SchemaType::Array(kinds) => kinds.contains(&Type::String),
        SchemaType::AnyValue => false,
    };
    if is_text {
        object.max_length = Some(bytes);
    }
}

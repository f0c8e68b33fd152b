//! Tests of the whole market.

//! What the author of a Kuorum policy plugin will build on.
//!
//! The SDK comes with the release that hosts plugins; this package keeps its name and place until then, and offers
//! nothing yet.

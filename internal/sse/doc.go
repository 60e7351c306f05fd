// Package sse is the wire format of OpenAI-style servers: event streams by the
// WHATWG rules, and the JSON shapes inside them. It promises that the same bytes
// give the same events however they are cut into reads, and that no byte
// sequence makes it panic, hang or grow without bound; it refuses what is not
// well-formed instead of guessing.
package sse

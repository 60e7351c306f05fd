// Package engine builds and checks the test suite's real inference engine: a
// thin OpenAI-compatible server over a prebuilt libllama, a small model that is
// generated here, and a genuine SIF image of the two. It is a module of its
// own, so that the product never depends on what only its tests need.
package engine

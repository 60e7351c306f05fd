// Package archtest holds the rules of docs/architecture.md as tests: which
// package may import which, and what each binary may link.
package archtest

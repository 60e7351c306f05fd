// Package api is the language between sbench and sbenchd: request and response
// types of the HTTP/JSON interface under /v1/, and a client for it over the
// daemon's Unix socket. Keys are snake_case with units in their names; what is
// unknown is null, and a number is never NaN.
package api

import (
	"strings"

	"sbench/internal/diag"
)

// DefaultSocket is where sbenchd listens unless told otherwise.
const DefaultSocket = "/run/sbench/sbenchd.sock"

// SocketEnv names the environment variable that overrides DefaultSocket.
const SocketEnv = "SBENCH_SOCKET"

// MaxRequestBytes bounds the body of a request: a sweep file and its options.
const MaxRequestBytes = 8 << 20

// Code is the category of a failure; the command's exit status follows from it.
type Code string

// The categories.
const (
	CodeInvalid     Code = "invalid"     // the request or the sweep file is wrong
	CodeRefused     Code = "refused"     // quota, permission, a site that does not fit
	CodeNotFound    Code = "not_found"   // no such sweep, setting, run or site
	CodeConflict    Code = "conflict"    // the state does not allow it
	CodeUnavailable Code = "unavailable" // the database or Slurm cannot be reached
	CodeLimited     Code = "limited"     // the caller sends too many requests
	CodeInternal    Code = "internal"    // a fault of the daemon
)

// Problem is how every failed request is answered, and the error that the
// client returns for it.
type Problem struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint says what to do about it; "" where there is nothing to say.
	Hint string `json:"hint,omitempty"`
	// Reasons has one line for each ground of a refusal.
	Reasons []string `json:"reasons,omitempty"`
	// Diagnostics are the faults of the sweep file, with their places.
	Diagnostics diag.List `json:"diagnostics,omitempty"`
}

// Error returns the message, and the reasons after it.
func (p *Problem) Error() string {
	if len(p.Reasons) == 0 {
		return p.Message
	}
	return p.Message + ": " + strings.Join(p.Reasons, "; ")
}

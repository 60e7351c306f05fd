package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// ErrNoReset says that the engine has no way, or none that is switched on, to
// empty its prefix cache.
var ErrNoReset = errors.New("the engine offers no way to empty its prefix cache")

// ResetCache empties the prefix cache of a running engine and says by which route.
// An engine that does not know the route, or has it switched off, answers 404 or
// 405: the error is then ErrNoReset.
func ResetCache(ctx context.Context, e Engine, base string) (route string, err error) {
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	for _, route := range e.ResetPaths() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+route, http.NoBody)
		if err != nil {
			return "", err
		}
		status, answer, err := do(client, req)
		switch {
		case err != nil:
			return "", fmt.Errorf("empty the prefix cache: %w", err)
		case status == http.StatusOK || status == http.StatusNoContent:
			return route, nil
		case status == http.StatusNotFound || status == http.StatusMethodNotAllowed || status == http.StatusNotImplemented:
		default:
			return "", fmt.Errorf("empty the prefix cache: POST %s answers %d: %s", route, status, firstLine(answer))
		}
	}
	return "", ErrNoReset
}

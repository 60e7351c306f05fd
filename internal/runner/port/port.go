// Package port finds TCP ports of this host.
package port

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// lowest is the lowest that Free chooses: fixed services lie below.
const lowest = 10000

// Free returns a TCP port of this host's address that nobody listens on now;
// host "" is all of them. An engine listens on it only once it has loaded its model,
// minutes later, so the port is chosen at random from those that the kernel gives to
// nobody by itself (Ephemeral). Somebody may still be faster: the caller verifies who
// owns it.
func Free(host string) (int, error) {
	low, high, _ := Ephemeral()
	for range 100 {
		port := lowest + rand.IntN(1<<16-lowest) //nolint:gosec // spreads the engines, hides nothing
		if low <= port && port <= high {
			continue
		}
		if free, err := listen(host, port); err == nil {
			return free, nil
		}
	}
	// The kernel may use nearly all of them.
	return listen(host, 0)
}

// listen returns the port that it could listen on; with 0 the kernel chooses.
func listen(host string, port int) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// Ephemeral returns the first and the last port of those that the kernel gives to
// connections, and to listeners that name none (ip_local_port_range in its
// documentation); ok is false where it does not say.
func Ephemeral() (low, high int, ok bool) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, false
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		return 0, 0, false
	}
	return low, high, true
}

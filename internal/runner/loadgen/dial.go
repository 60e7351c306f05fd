package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ParseTarget reads a URL: http://host:port[/prefix], https://…, or
// unix:///path/to/socket[:/prefix].
func ParseTarget(raw string) (Target, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Target{}, fmt.Errorf("url %q: %w", raw, err)
	}
	base := strings.TrimRight(u.EscapedPath(), "/")
	// Servers are given with and without the version: both mean the same.
	base = strings.TrimSuffix(base, "/v1")
	port := u.Port()
	switch u.Scheme {
	case "unix":
		path, prefix, _ := strings.Cut(u.Path, ":")
		if path == "" || u.Host != "" {
			return Target{}, fmt.Errorf("url %q: want unix:///path/to/socket", raw)
		}
		return Target{Network: "unix", Address: path, Host: "localhost", Base: strings.TrimSuffix(strings.TrimRight(prefix, "/"), "/v1")}, nil
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
	default:
		return Target{}, fmt.Errorf("url %q: want http://, https:// or unix://", raw)
	}
	if u.Hostname() == "" {
		return Target{}, fmt.Errorf("url %q has no host", raw)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return Target{}, fmt.Errorf("url %q: user, query and fragment mean nothing here", u.Redacted())
	}
	t := Target{Network: "tcp", Address: net.JoinHostPort(u.Hostname(), port), Host: u.Host, Base: base}
	if u.Scheme == "https" {
		t.Network = "tls"
	}
	return t, nil
}

// address is a target whose name is resolved.
type address struct {
	family int
	path   string // of a Unix socket
	ip     netip.Addr
	port   int
	local  bool // on this machine: no names, no network
	text   string
}

// resolve looks the target's name up, once, before anything is timed.
func resolve(ctx context.Context, t Target) (address, error) {
	if t.Network == "unix" {
		return address{family: unix.AF_UNIX, path: t.Address, local: true, text: t.Address}, nil
	}
	host, service, err := net.SplitHostPort(t.Address)
	if err != nil {
		return address{}, fmt.Errorf("address %s: %w", t.Address, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return address{}, fmt.Errorf("address %s: port: %w", t.Address, err)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return address{}, fmt.Errorf("resolve %s: %w", host, err)
	}
	ip := ips[0].Unmap()
	for _, other := range ips {
		if other.Unmap().Is4() {
			ip = other.Unmap()
			break
		}
	}
	a := address{family: unix.AF_INET6, ip: ip, port: int(port), local: ip.IsLoopback(), text: netip.AddrPortFrom(ip, uint16(port)).String()}
	if ip.Is4() {
		a.family = unix.AF_INET
	}
	return a, nil
}

// sockaddr is the address for one system call: the library writes into it.
func (a address) sockaddr() unix.Sockaddr {
	switch a.family {
	case unix.AF_UNIX:
		return &unix.SockaddrUnix{Name: a.path}
	case unix.AF_INET:
		return &unix.SockaddrInet4{Port: a.port, Addr: a.ip.As4()}
	}
	return &unix.SockaddrInet6{Port: a.port, Addr: a.ip.As16()}
}

// begin starts a connection: for an exchange, or a spare one where x is nil. Its
// loop hears of the outcome.
func (r *runner) begin(x *exchange) error {
	fd, err := unix.Socket(r.addr.family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if r.addr.family != unix.AF_UNIX {
		// Requests are written whole: nothing is to wait for more.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	stamped := r.addr.family != unix.AF_UNIX && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1) == nil
	err = unix.Connect(fd, r.addr.sockaddr())
	if err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return err
	}
	c := &conn{fd: fd, x: x, since: r.now(), armed: true, stamped: stamped}
	c.state.Store(connConnecting)
	l := r.loops[int(r.robin.Add(1))%len(r.loops)]
	r.open.Add(1)
	r.opened.Add(1)
	if err := l.add(c, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP); err != nil {
		unix.Close(fd)
		r.open.Add(-1)
		r.opened.Add(-1)
		return err
	}
	return nil
}

// spareFailed notes that a connection for the pool did not come about.
func (r *runner) spareFailed(err error) {
	r.spareError.Store(&err)
	r.spares.Add(-1)
}

func (r *runner) lastSpareError() error {
	if err := r.spareError.Load(); err != nil {
		return *err
	}
	return unix.ETIMEDOUT
}

// Unreachable says whether an error means that the server could not be reached.
func Unreachable(err error) bool {
	var op *net.OpError
	var errno unix.Errno
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return true
	case errors.As(err, &op):
		return op.Op == "dial"
	case errors.As(err, &errno):
		return errno == unix.ECONNREFUSED || errno == unix.ENOENT || errno == unix.EHOSTUNREACH || errno == unix.ENETUNREACH || errno == unix.ETIMEDOUT
	}
	return false
}

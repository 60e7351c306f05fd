package loadgen

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	to := netip.MustParseAddrPort(listener.Addr().String())
	a := address{family: unix.AF_INET, ip: to.Addr(), port: int(to.Port())}
	// A table as the kernel prints it: two connections there, the listener, and one
	// to the same port elsewhere.
	table := "  sl  local_address rem_address   st tx_queue rx_queue\n"
	for i, end := range [][2]string{{"0100007F:9C40", kernelAddress(a)}, {"0100007F:9C41", kernelAddress(a)}, {kernelAddress(a), "00000000:0000"}, {"0100007F:9C42", fmt.Sprintf("0200007F:%04X", a.port)}} {
		table += fmt.Sprintf("%4d: %s %s 06 00000000:00000000 03:00000176 00000000     0        0 0 3\n", i, end[0], end[1])
	}
	if n := connections(strings.NewReader(table), a); n != 2 {
		t.Errorf("connections = %d, want 2", n)
	}
	before := freePorts(a)
	for range 3 {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	after := freePorts(a)
	if before == nil || after == nil || *before-*after != 3 {
		t.Errorf("free ports before and behind three connections: %v, %v", before, after)
	}
}

// The words are those of a little-endian processor, as all are that are built for.
func TestKernelAddress(t *testing.T) {
	for in, want := range map[string]string{
		"127.0.0.1:8080": "0100007F:1F90",
		"10.1.2.3:80":    "0302010A:0050",
		"[::1]:443":      "00000000000000000000000001000000:01BB",
	} {
		to := netip.MustParseAddrPort(in)
		if got := kernelAddress(address{ip: to.Addr(), port: int(to.Port())}); got != want {
			t.Errorf("%s is %s, want %s", in, got, want)
		}
	}
}

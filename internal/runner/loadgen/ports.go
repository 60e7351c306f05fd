package loadgen

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sbench/internal/runner/port"
)

// freePorts is the number of local ports that new connections to the address may
// use, or nil where connections need none or it cannot be told. Connections to
// other addresses take none away: a port serves one of each.
func freePorts(a address) *int {
	if a.family == unix.AF_UNIX {
		return nil
	}
	low, high, ok := port.Ephemeral()
	if !ok {
		return nil
	}
	table := "/proc/net/tcp"
	if a.family == unix.AF_INET6 {
		table = "/proc/net/tcp6"
	}
	f, err := os.Open(table)
	if err != nil {
		return nil
	}
	defer f.Close()
	free := max(0, high-low+1-connections(f, a))
	return &free
}

// connections counts the connections to an address in one of the kernel's tables,
// those that were closed and wait included (proc_net_tcp in the kernel's
// documentation).
func connections(table io.Reader, a address) (n int) {
	remote := kernelAddress(a)
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		if f := bytes.Fields(lines.Bytes()); len(f) > 2 && string(f[2]) == remote {
			n++
		}
	}
	return n
}

// kernelAddress is an address as the kernel's tables have it: words of four bytes
// in the processor's order.
func kernelAddress(a address) string {
	var text strings.Builder
	ip := a.ip.AsSlice()
	for i := 0; i+4 <= len(ip); i += 4 {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(ip[i:]))
	}
	fmt.Fprintf(&text, ":%04X", a.port)
	return text.String()
}

package loadgen

import (
	"bytes"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stamps receives data together with the time at which the kernel took it in. What
// a thread sees late, because it was reading other streams or did not run, it
// still times exactly. A stamp is that of the last packet that a read took from
// (Documentation/networking/timestamping.rst); no packet of a stream that carries
// one event at a time holds two.
type stamps struct {
	message unix.Msghdr
	part    unix.Iovec
	control [64]byte
}

func (s *stamps) init(buf []byte) {
	s.part.Base = &buf[0]
	s.part.SetLen(len(buf))
	s.message.Iov, s.message.Control = &s.part, &s.control[0]
	s.message.SetIovlen(1)
}

// receive reads what has come in on a connection into the loop's buffer. stamp is
// when, ns since 1970; 0 where the kernel does not say.
func (l *loop) receive(c *conn) (n int, stamp int64, errno unix.Errno) {
	if !c.stamped {
		n, errno = read(c.fd, l.buf)
		return n, 0, errno
	}
	s := &l.stamps
	s.message.SetControllen(len(s.control))
	got, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&s.message)), 0)
	if errno != 0 {
		return 0, 0, errno
	}
	head := (*unix.Cmsghdr)(unsafe.Pointer(&s.control[0]))
	if int(s.message.Controllen) >= unix.CmsgLen(int(unsafe.Sizeof(unix.Timespec{}))) &&
		head.Level == unix.SOL_SOCKET && head.Type == unix.SCM_TIMESTAMPNS {
		stamp = (*unix.Timespec)(unsafe.Pointer(&s.control[unix.CmsgLen(0)])).Nano()
	}
	return int(got), stamp, 0
}

// arrival is when the bytes of a read came in, on the attempt's clock: by the
// kernel's stamp, where there is one and it can be true.
func (l *loop) arrival(x *exchange, p []byte, stamp, now int64) int64 {
	if stamp == 0 {
		l.unstamped = true
		return now
	}
	at := stamp - l.wall
	if at > now || at < x.last || at < x.attempt {
		l.unstamped = true // the wall clock was set meanwhile
		return now
	}
	// Of several events, the earlier ones may have come sooner.
	if doubt := at - l.drained.since; doubt > doubtful && doubt > l.blur && several(p) {
		l.blur = doubt
	}
	return max(at, x.written)
}

// several says whether a piece of a stream may hold more than one event.
func several(p []byte) bool {
	i := bytes.Index(p, dataField)
	return i >= 0 && bytes.Contains(p[i+len(dataField):], dataField)
}

// doubtful is the shortest doubt about a time that is worth a look, ns.
const doubtful = 50_000

var dataField = []byte(patternStart)

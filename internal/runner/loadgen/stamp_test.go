package loadgen

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// What is read late was there before: the kernel's stamp says when.
func TestReceive_TimesWhatWasReadLate(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	out, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	file, err := in.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		t.Fatal(err)
	}
	clock := NewClock()
	l := &loop{r: &runner{clock: clock}, buf: make([]byte, 1<<10)}
	l.stamps.init(l.buf)
	c := &conn{fd: fd, stamped: true}
	// The kernel begins to stamp a moment after it was asked to.
	begun, patience := false, time.Now().Add(10*time.Second)
	for i := 0; i < 5; i++ {
		before := clock.Now()
		if _, err := out.Write([]byte("data: x\n\n")); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; {
			if n, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err != nil || time.Now().After(deadline) {
				t.Fatalf("nothing came in: %v", err)
			} else if n > 0 {
				break
			}
		}
		there := clock.Now()
		for clock.Now() < there+5_000_000 {
			continue // late
		}
		n, stamp, errno := l.receive(c)
		if errno != 0 || n != 9 {
			t.Fatalf("receive: %d bytes, %v", n, errno)
		}
		if stamp == 0 && !begun && time.Now().Before(patience) {
			i--
			continue
		}
		begun = true
		now, wall := clock.nowAndWall()
		l.wall = wall - now
		if at := l.arrival(&exchange{}, l.buf[:n], stamp, now); at < before || at > there || l.unstamped {
			t.Errorf("arrival %d, want between %d and %d; read at %d", at, before, there, now)
		}
	}
}

func TestArrival_DoubtsWhatCannotBeTrue(t *testing.T) {
	const now = 1_000_000_000
	one, two := []byte("data: a\n\n"), []byte("data: a\n\ndata: b\n\n")
	for name, c := range map[string]struct {
		piece     []byte
		stamp     int64 // on the attempt's clock
		last      int64
		empty     int64
		want      int64
		unstamped bool
		blur      int64
	}{
		"late":                         {one, now - 5e6, 0, now - 9e6, now - 5e6, false, 0},
		"in the future":                {one, now + 1, 0, now, now, true, 0},
		"before what came before":      {one, now - 5e6, now - 4e6, now - 9e6, now, true, 0},
		"several, some of them sooner": {two, now - 5e6, 0, now - 9e6, now - 5e6, false, 4e6},
		"several at once":              {two, now - 5e6, 0, now - 5e6, now - 5e6, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := &loop{drained: drained{since: c.empty}, wall: 7e15}
			got := l.arrival(&exchange{last: c.last}, c.piece, c.stamp+l.wall, now)
			if got != c.want || l.unstamped != c.unstamped || l.blur != c.blur {
				t.Errorf("arrival %d, unstamped %v, blur %d", got, l.unstamped, l.blur)
			}
		})
	}
}

// What a pass reads has come in since the poll slept, or since the last pass that
// left nothing unread began.
func TestDrained(t *testing.T) {
	for name, c := range map[string]struct {
		slept, left []bool // of each pass; they begin at 1, 2, …
		want        int64
	}{
		"after a sleep":                    {[]bool{true}, []bool{false}, 1},
		"ready at once":                    {[]bool{true, false}, []bool{false, false}, 1},
		"ready at once, again":             {[]bool{true, false, false}, []bool{false, false, false}, 2},
		"something was left unread":        {[]bool{true, false, false}, []bool{false, true, false}, 1},
		"left unread, and again":           {[]bool{true, false, false, false}, []bool{false, true, true, false}, 1},
		"left unread, and read thereafter": {[]bool{true, false, false, false}, []bool{false, true, false, false}, 3},
		"left unread, then a sleep":        {[]bool{true, false, true}, []bool{false, true, false}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var d drained
			for i, slept := range c.slept {
				d.begin(int64(i+1), slept)
				if c.left[i] {
					d.left()
				}
			}
			if d.since != c.want {
				t.Errorf("since %d, want %d", d.since, c.want)
			}
		})
	}
}

// On a core that it shares, the sender never spins for more than its share.
func TestSpinning_KeepsItsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const longest = 200_000
		s := newSpinning(longest, 1, 0)
		var now, spun int64
		for range rapid.IntRange(1, 200).Draw(t, "sends") {
			now += rapid.Int64Range(0, 2_000_000).Draw(t, "pause")
			most := s.most(now)
			if most < 0 || most > longest {
				t.Fatalf("may spin for %d", most)
			}
			d := rapid.Int64Range(0, most).Draw(t, "spin")
			now += d
			spun += d
			s.spent(d)
			if limit := now/spinShare + spinSaved*longest; spun > limit {
				t.Fatalf("spun for %d of %d, allowed %d", spun, now, limit)
			}
		}
	})
	if s := newSpinning(200_000, 2, 0); s.most(0) != 200_000 {
		t.Error("a core of its own is its own")
	}
}

package gang

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// place is what the leader writes into the meeting file.
type place struct {
	Addresses   []string `json:"addresses"` // of the leader's node, the likeliest first
	Port        int      `json:"port"`
	Certificate string   `json:"certificate_sha256"` // hex
	Secret      string   `json:"secret"`             // hex
}

const maxPlace = 64 << 10

// hello is how a member introduces itself, and welcome how the leader answers.
type hello struct {
	Member
	Secret string `json:"secret"`
}

// newCertificate makes the leader's identity, which lives as long as the attempt.
func newCertificate() (tls.Certificate, string, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(10, 0, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	sum := sha256.Sum256(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, hex.EncodeToString(sum[:]), nil
}

// addresses are those of this node, the one its Slurm name resolves to first and
// the loopback last, for members on the same machine.
func addresses(ctx context.Context, node string) []string {
	var found []string
	add := func(text string) {
		ip := net.ParseIP(text)
		if ip != nil && ip.IsGlobalUnicast() && !slices.Contains(found, ip.String()) {
			found = append(found, ip.String())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	resolved, _ := net.DefaultResolver.LookupHost(ctx, node) // "" where nobody knows it
	own, _ := net.InterfaceAddrs()
	for _, text := range resolved {
		// A name may resolve to an address of another machine's.
		if slices.ContainsFunc(own, func(a net.Addr) bool { n, ok := a.(*net.IPNet); return ok && n.IP.String() == text }) {
			add(text)
		}
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok {
			add(n.IP.String())
		}
	}
	return append(found, "127.0.0.1")
}

// writePlace makes the meeting file appear whole, for this user alone.
func writePlace(path string, p place) (err error) {
	text, err := json.Marshal(p) //nolint:gosec // the file is what hands the secret over
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".meet-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// readPlace reads the meeting file of this very user.
func readPlace(path string) (place, error) {
	var p place
	// A shared file system may keep on saying that the file is not there until
	// somebody lists the folder.
	_, _ = os.ReadDir(filepath.Dir(path))
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return p, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return p, err
	}
	if int(st.Uid) != os.Getuid() || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return p, fmt.Errorf("%s is not a file of this user", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxPlace))
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p, fmt.Errorf("read %s: %w", path, err)
	}
	return p, nil
}

// Join finds the leader by the meeting file at path and joins it. It tries again
// until the timing's Meet has passed: the leader may begin later, the file may
// show late, and an older one of the same name may be there first.
func Join(ctx context.Context, path string, me Member, t Timing) (*Follower, error) {
	t = t.withDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, t.Meet, fmt.Errorf("the leader was not met within %v", t.Meet))
	defer cancel()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		p, err := readPlace(path)
		if err == nil {
			for _, address := range p.Addresses {
				var f *Follower
				if f, err = join(ctx, p, address, me, t); err == nil {
					return f, nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("join the gang: %w: %w", context.Cause(ctx), err)
		case <-time.After(wait):
		}
	}
}

func join(ctx context.Context, p place, address string, me Member, t Timing) (*Follower, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13,
		// The certificate is not vouched for by anybody: it is compared itself.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 {
				return errors.New("not the leader")
			}
			sum := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(sum[:])), []byte(p.Certificate)) != 1 {
				return errors.New("not the leader")
			}
			return nil
		},
	}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(p.Port)))
	if err != nil {
		return nil, err
	}
	l := newLink(conn, t)
	me.Via = address
	body, err := json.Marshal(hello{me, p.Secret}) //nolint:gosec // to the leader alone, over TLS
	if err == nil {
		err = l.send(message{Kind: "hello", Body: body})
	}
	var m message
	if err == nil {
		m, err = l.receive()
	}
	if err == nil && m.Kind != "welcome" {
		err = fmt.Errorf("the leader answers %q: %s", m.Kind, m.Err)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	go l.beat()
	return &Follower{link: l}, nil
}

package batch

import (
	"errors"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// Mirror is a server from which a node takes pinned artefacts that it cannot read
// on the shared file system. It names files and holds no secret.
type Mirror struct {
	// URL is sftp://user@host[:port]/base. An artefact with the absolute path P lies
	// there at base followed by P.
	URL        string `json:"url"`
	Key        string `json:"key"`         // path, on the node, of a private key of mode 0600
	KnownHosts string `json:"known_hosts"` // path, on the node, of the host keys that are believed
}

// MirrorAddress is what a mirror's URL says.
type MirrorAddress struct {
	User string
	Host string // with its port
	Base string // absolute and clean
}

// ParseMirrorURL takes a mirror's URL apart. Its errors do not repeat the text,
// which may hold a password where it is wrong.
func ParseMirrorURL(text string) (MirrorAddress, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "sftp" || u.Opaque != "" {
		return MirrorAddress{}, errors.New("is not of the form sftp://user@host[:port]/base")
	}
	_, password := u.User.Password()
	port := u.Port()
	if port == "" {
		port = "22"
	}
	n, err := strconv.Atoi(port)
	user, host := u.User.Username(), u.Hostname()
	switch {
	case password:
		return MirrorAddress{}, errors.New("holds a password: a mirror is opened with a key file")
	case user == "" || strings.HasPrefix(user, "-"):
		return MirrorAddress{}, errors.New("names no user: sftp://user@host[:port]/base")
	case host == "" || strings.HasPrefix(host, "-") || strings.ContainsAny(host, " %/\\"):
		return MirrorAddress{}, errors.New("names no host: sftp://user@host[:port]/base")
	case err != nil || n < 1 || n > 65535:
		return MirrorAddress{}, errors.New("has no port between 1 and 65535")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return MirrorAddress{}, errors.New("has a query or a fragment, which mean nothing here")
	case u.Path == "":
		return MirrorAddress{}, errors.New("names no base folder: sftp://user@host[:port]/base")
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		if part == ".." {
			return MirrorAddress{}, errors.New("has .. in its base folder")
		}
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return MirrorAddress{User: user, Host: host + ":" + port, Base: path.Clean(u.Path)}, nil
}

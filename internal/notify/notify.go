// Package notify mails people what became of their sweeps. It promises a mail for
// each event and never a second one: the outbox is written with the event, a mail
// is claimed before it is sent, and one of which nobody knows whether it was sent
// is given up, in the log. It refuses to let a mail disturb anything else.
package notify

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"sbench/internal/mail"
	"sbench/internal/store"
)

// Config is what a Service works with.
type Config struct {
	Store *store.Store
	// Send hands a message over. After an error that is mail.ErrUnknown the message
	// is not sent again.
	Send func(ctx context.Context, m mail.Message) error
	// From is the sender's address; "" leaves it to the mail program. Domain is
	// added to recipients that are users' names; "" leaves them as they are.
	From, Domain string
	Log          *slog.Logger
	Now          func() time.Time // nil is time.Now
	// Interval is how long nothing is looked at; 0 is DefaultInterval.
	Interval time.Duration
	// Failpoint is called at the steps between which a daemon may be killed; nil
	// does nothing.
	Failpoint func(name string)
}

// DefaultInterval is Config.Interval's default.
const DefaultInterval = 5 * time.Second

// The failpoints, in the order in which a mail passes them.
const (
	FailClaimed = "mail-1-claimed" // nothing was sent
	FailSent    = "mail-2-sent"    // it was sent, which is not recorded
)

// waits are between a try and the next; after the last one the mail is given up.
var waits = []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 4 * time.Hour}

// Service sends the outbox's mails, one after the other.
type Service struct {
	Config
	host string
}

// New returns a service. Nothing is looked at yet.
func New(c Config) *Service {
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Failpoint == nil {
		c.Failpoint = func(string) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Log = c.Log.With("service", "mail")
	host, err := os.Hostname()
	if err != nil || strings.Trim(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") != "" {
		host = "sbench"
	}
	return &Service{c, host}
}

// Run sends until ctx ends, whose error it returns, or store.ErrFenced where another
// daemon acts. A mail that is being sent then is finished.
func (s *Service) Run(ctx context.Context) error {
	return store.UntilFenced(ctx, s.Interval, nil, s.turn, func(err error) {
		s.Log.WarnContext(ctx, "the outbox cannot be worked on", "error", err)
	})
}

// turn sends what is due. What is claimed when it begins was claimed by an earlier
// daemon, or by a turn whose outcome the database did not take.
func (s *Service) turn(ctx context.Context) error {
	list, err := s.Store.DoubtfulMail(ctx)
	if err != nil {
		return err
	}
	for _, m := range list {
		s.Log.WarnContext(ctx, "not known whether a mail was sent; it is not sent again", "sweep", m.SweepID, "event", m.Event, "to", m.To)
	}
	for ctx.Err() == nil {
		m, some, err := s.Store.ClaimMail(ctx)
		if err != nil || !some {
			return err
		}
		// A claim without an outcome is a mail that is lost: what was begun is ended.
		if err := s.send(context.WithoutCancel(ctx), m); err != nil {
			return err
		}
	}
	return nil
}

// recordFor is how long a database that is away is asked to take an outcome.
const recordFor = 20 * time.Second

func (s *Service) send(ctx context.Context, m store.Mail) error {
	s.Failpoint(FailClaimed)
	message, err := s.message(ctx, m)
	if err == nil {
		err = s.Send(ctx, message)
	}
	s.Failpoint(FailSent)
	log := s.Log.With("sweep", m.SweepID, "event", m.Event, "to", m.To)
	state, problem := store.MailSent, ""
	var next *time.Time
	switch {
	case err == nil:
		log.InfoContext(ctx, "mail sent")
	case errors.Is(err, mail.ErrUnknown):
		state, problem = store.MailUnknown, err.Error()
		log.WarnContext(ctx, "not known whether a mail was sent; it is not sent again", "error", err)
	case m.Tries > len(waits):
		state, problem = store.MailFailed, err.Error()
		log.ErrorContext(ctx, "mail given up", "tries", m.Tries, "error", err)
	default:
		at := s.Now().Add(waits[m.Tries-1])
		state, problem, next = store.MailWaiting, err.Error(), &at
		log.WarnContext(ctx, "mail was not sent; trying again later", "tries", m.Tries, "next", at, "error", err)
	}
	ctx, cancel := context.WithTimeout(ctx, recordFor)
	defer cancel()
	for {
		err := s.Store.SetMail(ctx, m.ID, state, next, problem)
		if err == nil || !store.Unavailable(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

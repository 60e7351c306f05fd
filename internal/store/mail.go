package store

import (
	"context"
	"fmt"
	"time"
)

// The states of a mail.
const (
	MailWaiting = "waiting"
	MailSending = "sending"
	MailSent    = "sent"
	MailFailed  = "failed"
	MailUnknown = "unknown" // nobody knows whether it was sent; it is not sent again
)

// Mail is a row of the outbox: what became of a sweep, for somebody to know.
type Mail struct {
	ID         int64
	SweepID    int64
	Event      string // as --mail-type has it
	Occurrence int
	SweepState SweepState // at that moment
	At         time.Time
	To         string `db:"mail_user"`
	State      string
	Tries      int
	LastError  string
}

const (
	mailColumns  = `m.id, m.sweep_id, m.event, m.occurrence, m.sweep_state, m.at, s.mail_user, m.state, m.tries, m.last_error`
	sqlClaimMail = `
update mail m set state = 'sending', tries = m.tries + 1, changed_at = $1
  from sweep s
 where s.id = m.sweep_id and m.id = (
       select id from mail where state = 'waiting' and (next_try_at is null or next_try_at <= $1)
        order by id limit 1 for update skip locked)
returning ` + mailColumns
	sqlDoubtfulMail = `
update mail m set state = 'unknown', changed_at = $1, last_error = 'the daemon or the database was away when it had been sent'
  from sweep s
 where s.id = m.sweep_id and m.state = 'sending'
returning ` + mailColumns
	sqlSetMail = `
update mail set state = $2, next_try_at = $3, last_error = $4, changed_at = $5 where id = $1 and state = 'sending'`
	sqlMailsOfSweep = `select ` + mailColumns + ` from mail m join sweep s on s.id = m.sweep_id where m.sweep_id = $1 order by m.id`
)

// ClaimMail takes the oldest mail that is due, for this daemon to send; none is
// false. A claim is never taken back: see DoubtfulMail.
func (s *Store) ClaimMail(ctx context.Context) (m Mail, some bool, err error) {
	list, err := s.updateMail(ctx, "claim mail", sqlClaimMail)
	if err != nil || len(list) == 0 {
		return Mail{}, false, err
	}
	return list[0], true, nil
}

// DoubtfulMail gives up the mails that are claimed, and returns them. Whoever acts
// calls it when it sends none.
func (s *Store) DoubtfulMail(ctx context.Context) ([]Mail, error) {
	return s.updateMail(ctx, "read claimed mail", sqlDoubtfulMail)
}

func (s *Store) updateMail(ctx context.Context, what, sql string) (list []Mail, err error) {
	err = s.WithTx(ctx, func(tx *Tx) error {
		list, err = collect[Mail](ctx, tx, "mail", sql, tx.now)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return list, nil
}

// SetMail records what became of a claimed mail. With MailWaiting it is due again
// at next.
func (s *Store) SetMail(ctx context.Context, id int64, state string, next *time.Time, problem string) error {
	err := s.WithTx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, sqlSetMail, id, state, next, problem, tx.now)
		return err
	})
	if err != nil {
		return fmt.Errorf("record mail %d: %w", id, err)
	}
	return nil
}

// MailsOfSweep lists the mails about a sweep, oldest first.
func (s *Store) MailsOfSweep(ctx context.Context, sweep int64) ([]Mail, error) {
	return collect[Mail](ctx, s.pool, "mail", sqlMailsOfSweep, sweep)
}

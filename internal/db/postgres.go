package db

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"doorward.dev/doorward/internal/fault"
)

// postgresConns bounds the connections of one replica.
const postgresConns = 10

func isPostgresURL(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

func openPostgres(url string, readOnly bool) (*DB, error) {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		// The parser's error quotes the URL, and with it the password.
		return nil, fault.New(fault.Config, "the postgres:// database url cannot be read; expected postgres://user:password@host:port/name")
	}
	c.RuntimeParams["application_name"] = "doorward"
	if readOnly {
		c.RuntimeParams["default_transaction_read_only"] = "on"
	}
	c.DialFunc = dialer.DialContext
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = dialer.Timeout
	}
	pool := stdlib.OpenDB(*c)
	pool.SetMaxOpenConns(postgresConns)
	pool.SetMaxIdleConns(postgresConns)
	pool.SetConnMaxIdleTime(5 * time.Minute)
	return &DB{Write: pool, Read: pool, postgres: true, config: c}, nil
}

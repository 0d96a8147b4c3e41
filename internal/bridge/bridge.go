// Package bridge is what has to be translated between eras: the shapes of
// results and lists, and the sessions of older clients, which are signed data
// and not a key into memory. It knows no caller, tool or connection.
package bridge

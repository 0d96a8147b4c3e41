// Package op declares an operation once: a tool of a built-in server with its typed input, from which
// the JSON Schema, the docs and the checks follow. (REST routes join in when they gain from it.)
package op

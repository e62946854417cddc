// Package config reads what can be set from outside: one file, and environment
// variables that win over it. Every setting is one row of [Settings], with its
// default, its unit and when to change it; the reference for people is written
// from the same rows.
//
// It must never hold the value of a secret: settings and specs carry
// references, which are resolved where they are used and at that time. It does
// not know what a provider does with its settings, only which there are.
//
// The mains call it through internal/cli. Beside them it is the only package
// that reads the environment, and it does so through a function that the
// caller hands in.
package config
